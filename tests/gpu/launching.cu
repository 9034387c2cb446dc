
extern "C" __global__ void cluster_size(int* out) {
  unsigned x = 1, y = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(x));
  asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(y));
#endif
  if (threadIdx.x == 0) { atomicMax(out, x); atomicMax(out + 1, y); atomicAdd(out + 2, 1); }
}
struct Pair { int a; float b; };
struct Opaque { char bytes[128]; };
extern "C" __global__ void types(
    double* out, bool t, signed char i8, short i16, int i32, long long i64, unsigned long long u64,
    float f, double d, double2 z, Pair pair, const __grid_constant__ Opaque opaque, void* none) {
  double values[] = {double(t), double(i8), double(i16), double(i32), double(i64), double(u64), f, d,
                     z.x, z.y, double(pair.a), pair.b, double(opaque.bytes[127]), double(none == 0)};
  for (int i = 0; i < 14; i++) out[i] = values[i];
}
extern "C" __global__ void dynamic(int* out, int n) {
  extern __shared__ int s[];
  s[n - 1] = 5;
  *out = s[n - 1];
}
extern "C" __global__ void add(int* x) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < 1 << 20; i += gridDim.x * blockDim.x)
    x[i] = x[i] * 3 + 1;
}
extern "C" __global__ void meet(int* count, int* seen) {
  if (threadIdx.x) return;
  __threadfence();
  atomicAdd(count, 1);
  while (atomicAdd(count, 0) < int(gridDim.x)) {}
  atomicAdd(seen, 1);
}
