#include <vector>
__global__ void k(int* x) { *x = 42; }
int main() { return std::vector<int>(1, 0)[0]; }
