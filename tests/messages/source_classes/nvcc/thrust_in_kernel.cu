#include <thrust/functional.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
extern "C" __global__ void k(float* p) { p[threadIdx.x] = thrust::reduce(thrust::seq, p, p + 4); }
