// A host class of std, by a qualified name, in a kernel.
#include <type_traits>
__global__ void k(int* p) { p[0] = std::chrono::system_clock::now().time_since_epoch().count(); }
