#include <cstdio>
#include <cuda_occupancy.h>
int main() {
  cudaOccDeviceProp p;
  cudaOccFuncAttributes f;
  cudaOccDeviceState s;
  int block, dynamic;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.numSms = 1;
  p.regsPerMultiprocessor = 65536;
  p.sharedMemPerBlock = 49152;
  f.maxThreadsPerBlock = 1024;
  f.partitionedGCConfig = PARTITIONED_GC_OFF;
  f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  f.numBlockBarriers = 1;
  while (scanf("%d %d %d %d %zu %zu %zu %d %d %d", &p.computeMajor, &p.computeMinor,
               &p.maxThreadsPerMultiprocessor, &p.regsPerBlock, &p.sharedMemPerMultiprocessor,
               &p.sharedMemPerBlockOptin, &p.reservedSharedMemPerBlock,
               &block, &f.numRegs, &dynamic) == 10) {
    cudaOccResult r;
    f.sharedSizeBytes = 0;
    f.maxDynamicSharedSizeBytes = dynamic;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &s, block, dynamic)) return 1;
    printf("%d\n", r.activeBlocksPerMultiprocessor);
  }
}
