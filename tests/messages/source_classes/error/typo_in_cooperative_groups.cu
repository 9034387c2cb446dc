#include <cooperative_groups.h>
extern "C" __global__ void k(float* p) { cooperative_groups::this_gird().sync(); }
