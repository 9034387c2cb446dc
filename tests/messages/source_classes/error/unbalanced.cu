extern "C" __global__ void k(float* p) { if (p) { p[0] = 1.0f; }
