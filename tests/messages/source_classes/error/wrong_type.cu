struct A {};
extern "C" __global__ void k(float* p) { A a; p[0] = a; }
