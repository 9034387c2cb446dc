int f(int n) { if (n < 0) throw n; return n; }
extern "C" __global__ void k(float* p) { p[0] = 1; }
