__global__ void k(float* p) { flaot x = p[0]; p[1] = x; }
