// A typo in a kernel, beside host code that only NVCC can build.
__global__ void k(int* p) { p[0] = undefined_thing; }
int main() { k<<<1, 1>>>(nullptr); }
