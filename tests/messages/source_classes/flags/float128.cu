// arch: sm_100
extern "C" __global__ void k(double* p) { p[0] = (double)((__float128)p[1] * p[2]); }
