struct P { float x; };
extern "C" __global__ void k(P* p) { p->y = 1; }
