int f() { return puts("abc"); }
extern "C" __global__ void k(float* p) { p[0] = 1; }
