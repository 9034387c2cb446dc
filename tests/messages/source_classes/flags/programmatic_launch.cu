extern "C" __global__ void k(float* p) { cudaGridDependencySynchronize(); p[threadIdx.x] = 1.0f; }
