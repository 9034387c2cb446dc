template<class T> __global__ void k(T* x) { *x = 42; }
