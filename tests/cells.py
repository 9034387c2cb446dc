"""Sources that the tests of notebooks put into cells."""

ENDLESS = "typedef int (*F0)(int);\n" + "".join(
    f"typedef F{i} (*F{i + 1})(F{i}, F{i});\n" for i in range(40)
)  # the mangled name of the parameter doubles with each typedef

TWO = """
__global__ void double_it(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }
__global__ void halve_it(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] /= 2; }
"""
