extern "C" __global__ void k(float* p) { asm volatile("mov.wrong %r0, 1;"); p[0] = 1; }
