// A macro that nothing defines, in the place of a type.
extern "C" KERNEL(void) k(float* x) { x[0]=1; }
