__global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
int main() {
  float* d;
  cudaMalloc(&d, 128);
  k<<<1, 32>>>(d);
  return cudaDeviceSynchronize() != cudaSuccess;
}
