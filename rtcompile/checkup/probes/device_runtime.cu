__global__ void child(int* x) { *x = 1; }
__global__ void k(int* x) { child<<<1, 1>>>(x); }
