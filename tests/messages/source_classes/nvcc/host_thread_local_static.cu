int f() { static thread_local int x; return ++x; }
extern "C" __global__ void k(float* p) { p[0] = 1; }
