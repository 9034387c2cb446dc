// NVRTC's own bundle of headers is without this one. What device code uses of it is built into NVRTC:
// the vector types, cudaError_t, cudaStream_t, texture objects. Searched only beside that bundle.
#pragma once
#include <vector_types.h>
