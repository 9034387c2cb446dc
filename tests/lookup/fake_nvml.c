int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    *device = (void*)(0x7f0000000000L + index);
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
    int both = (long)device == 0x7f0000000000L ? FIRST : SECOND;
    *major = both / 10;
    *minor = both % 10;
    return 0;
}
