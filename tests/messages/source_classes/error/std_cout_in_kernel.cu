// A host object, in a kernel.
#include <iostream>
extern "C" __global__ void k(int* p){ std::cout << p[0]; }
