// One private histogram per block, of as many bins as dynamic shared memory has room for.
extern "C" __global__ void histogram(const unsigned short* values, unsigned int* bins, int n, int n_bins) {
    extern __shared__ unsigned int mine[];
    for (int b = threadIdx.x; b < n_bins; b += blockDim.x) mine[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        if (values[i] < n_bins) atomicAdd(&mine[values[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < n_bins; b += blockDim.x)
        if (mine[b]) atomicAdd(&bins[b], mine[b]);
}
