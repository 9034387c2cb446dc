struct S { int n; S(); }; S::S() : n(1) {} int f() { static S s; return s.n; }
extern "C" __global__ void k(float* p) { p[0] = 1; }
