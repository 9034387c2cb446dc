__gloabl__ void k(float* p) { p[0] = 1; }
