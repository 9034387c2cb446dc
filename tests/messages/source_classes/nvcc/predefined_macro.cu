// A macro that the host compiler predefines.
__global__ void k(int* p){ p[0]=__GXX_ABI_VERSION; }
