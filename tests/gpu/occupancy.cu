
template <int VALUES, int STATIC> __device__ void work(float* x) {
  extern __shared__ float dynamic[];
  __shared__ float fixed[STATIC + 1];
  float v[VALUES];
  #pragma unroll
  for (int i = 0; i < VALUES; i++) v[i] = x[i * 64 + threadIdx.x];
  fixed[threadIdx.x % (STATIC + 1)] = v[0];
  __syncthreads();
  float sum = fixed[threadIdx.x * 7 % (STATIC + 1)];
  #pragma unroll
  for (int i = 0; i < VALUES; i++) sum += v[i] * v[(i * 7 + 1) % VALUES];
  if (x[1] == 12345) sum += dynamic[threadIdx.x];
  x[threadIdx.x] = sum;
}
template <int VALUES, int STATIC> __global__ void plain(float* x) { work<VALUES, STATIC>(x); }
template <int VALUES, int STATIC, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) bounded(float* x) { work<VALUES, STATIC>(x); }
