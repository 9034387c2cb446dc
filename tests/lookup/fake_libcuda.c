static int initialised;
int cuInit(unsigned flags) { initialised = !flags; return flags ? 1 : BROKEN; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuCtxGetCurrent(void** context) { *context = (void*)CONTEXT; return 0; }
int cuCtxGetDevice(int* device) { *device = 1; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetCount(int* count) { *count = 2; return initialised ? 0 : 3; }
int cuGetErrorName(int code, const char** name) { *name = "CUDA_ERROR_OF_TEST"; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    int both = device ? SECOND : FIRST;
    *value = attribute == 75 ? both / 10 : both % 10;
    return 0;
}
