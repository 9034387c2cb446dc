thread_local int x; int f() { return ++x; }
extern "C" __global__ void k(float* p) { p[0] = 1; }
