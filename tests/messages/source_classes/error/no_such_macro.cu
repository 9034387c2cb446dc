// Looks like a macro of the host compiler, and is none.
__global__ void k(int* p){ p[0]=__COUNTERX__; }
