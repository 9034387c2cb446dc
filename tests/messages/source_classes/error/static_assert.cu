template <class T> __device__ T half(T x) { static_assert(sizeof(T) >= 4, "T is too small"); return x / 2; }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = half(short(3)); }
