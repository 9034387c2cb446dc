// options: --extended-lambda
template <class F> __global__ void apply(float* p, F f) { p[0] = f(p[0]); }
void launch(float* p) { apply<<<1, 1>>>(p, [] __device__(float x) { return x + 1; }); }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
