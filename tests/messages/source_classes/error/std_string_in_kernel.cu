// A host class, in a kernel.
#include <string>
extern "C" __global__ void k(char* p){ std::string s("a"); p[0]=s[0]; }
