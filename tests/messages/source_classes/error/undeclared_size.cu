extern "C" __global__ void k(float* p) { __shared__ float s[n]; s[0] = p[0]; }
