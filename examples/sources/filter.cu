#define MAX_TAPS 64

__constant__ float taps[MAX_TAPS];
__device__ unsigned long long calls;

// A causal filter: y[i] = sum over t of taps[t] * x[i - t].
extern "C" __global__ void filter(const float* x, float* y, int n, int n_taps) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) atomicAdd(&calls, 1ull);
    if (i >= n) return;
    float sum = 0.0f;
    for (int t = 0; t < n_taps && t <= i; ++t) sum += taps[t] * x[i - t];
    y[i] = sum;
}
