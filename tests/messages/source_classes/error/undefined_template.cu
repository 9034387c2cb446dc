template <int N> struct Tile;
extern "C" __global__ void k(float* p) { Tile<4> t; p[0] = 1; }
