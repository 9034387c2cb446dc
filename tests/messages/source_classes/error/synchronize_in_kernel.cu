// No device function: CUDA 12 removed it from device code.
extern "C" __global__ void k(int* p){ p[0]=1; cudaDeviceSynchronize(); }
