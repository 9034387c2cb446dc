// The driver's API, which only the host has, in a kernel.
extern "C" __global__ void k(int* p) { cuCtxSynchronize(); p[0] = 1; }
