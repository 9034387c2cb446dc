// The runtime of device code.
extern "C" __global__ void k(int* p){ void* q; cudaMalloc(&q, 4); p[0]=q!=0; }
