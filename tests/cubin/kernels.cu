struct Triple { int a; double b; char c; };
__constant__ int table[100];
__device__ float value = 2.f;
extern "C" __device__ void* const volatile marker = (void*)&value;

extern "C" __global__ void empty() {}

extern "C" __global__ void __launch_bounds__(256) shared(float* p, int n, Triple t) {
    __shared__ float s[64];
    s[threadIdx.x] = p[n] + table[n];
    __syncthreads();
    p[0] = s[threadIdx.x ^ 1] + t.b;
}

__device__ __noinline__ int callee(int* p) {
    volatile int v[50];
    for (int i = 0; i < 50; i++) v[i] = p[i];
    return v[p[0] % 50];
}

extern "C" __global__ void stack(int* p) {
    volatile int v[20];
    for (int i = 0; i < 20; i++) v[i] = p[i];
    *p = callee(p) + v[p[1] % 20] + *(volatile float*)&value;
}

template <class T> __global__ void generic(T* p) { *p = 1; }
template __global__ void generic<int>(int*);
