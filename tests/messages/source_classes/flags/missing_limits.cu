template <class T> __device__ T lowest() { return std::numeric_limits<T>::lowest(); }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = lowest<float>(); }
