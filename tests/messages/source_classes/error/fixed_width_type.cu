// A type of <cstdint>, which NVCC does not bring along either.
extern "C" __global__ void k(uint8_t* p){ p[0]=1; }
