// memcpy and memset are NVRTC's own; the device has no other function of this header.
#pragma once
