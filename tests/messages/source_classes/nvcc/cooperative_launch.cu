#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(float* p) { cg::this_grid().sync(); p[0] = 1; }
void launch(float* p) {
  void* args[] = {&p};
  cudaLaunchCooperativeKernel((void*)k, dim3(1), dim3(1), args);
}
