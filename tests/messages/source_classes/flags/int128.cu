extern "C" __global__ void k(unsigned long long* p) {
  p[0] = (unsigned long long)(((unsigned __int128)p[1] * p[2]) >> 64);
}
