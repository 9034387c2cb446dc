#pragma once
#include <cuda/std/cstddef>  // offsetof; NVRTC has size_t, ptrdiff_t and NULL itself
