struct A { A(int n) : n(n) {} int n; }; A a(3); int f() { return a.n; }
extern "C" __global__ void k(float* p) { p[0] = 1; }
