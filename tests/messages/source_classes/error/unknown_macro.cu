// A macro that nothing defines, before a kernel.
KERNEL void k(float* x) { x[0]=1; }
