template <class F> __global__ void g(F f) { f(); } void f() { g<<<1, 1>>>([] __device__() {}); }
extern "C" __global__ void k(float* p) { p[0] = 1; }
