extern "C" { template <class T> __global__ void k(T* p) { p[0] = 1; } }
