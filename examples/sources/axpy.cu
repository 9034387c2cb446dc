// TYPE and OP come from the command line: -DTYPE=double -DOP=fma.
extern "C" __global__ void axpy(TYPE a, const TYPE* __restrict__ x, TYPE* __restrict__ y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = OP(a, x[i], y[i]);
}
