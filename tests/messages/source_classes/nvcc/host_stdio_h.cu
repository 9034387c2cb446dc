#include <stdio.h>
#include <stdlib.h>
#define CHECK(e) if (e) { fprintf(stderr, "failed\n"); exit(1); }
void check(int e) { CHECK(e) }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
