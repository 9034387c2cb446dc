// clock is NVRTC's own; the device has no calendar.
#pragma once
#include <cuda/std/ctime>
