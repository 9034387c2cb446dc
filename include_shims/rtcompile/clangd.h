// What clang must know of CUDA before it reads a kernel: `rtcompile clangd` has it included first.
//
// Clang's own CUDA mode needs a whole toolkit of a version that it knows. Here its wrapper is off, and the
// declarations are those that NVRTC has built in: of the toolkit that is installed, as NVRTC reads them.
// The C library and the C++ library are the host's, usable on the device.
#pragma once
#pragma clang system_header
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#define __CUDA_RUNTIME_H__  // as under NVRTC: what it has for kernels is below
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
// The C library has functions of these names, which are not CUDA's.
#define __sinf __libc_sinf
#define __cosf __libc_cosf
#define __tanf __libc_tanf
#define __tanhf __libc_tanhf
#define __expf __libc_expf
#define __exp10f __libc_exp10f
#define __logf __libc_logf
#define __log2f __libc_log2f
#define __log10f __libc_log10f
#define __powf __libc_powf
#define __sincosf __libc_sincosf
#pragma clang force_cuda_host_device begin
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#pragma clang force_cuda_host_device end
#include <cuda.h>

#include <cmath>
#include <type_traits>
#include <utility>
#undef __sinf
#undef __cosf
#undef __tanf
#undef __tanhf
#undef __expf
#undef __exp10f
#undef __logf
#undef __log2f
#undef __log10f
#undef __powf
#undef __sincosf
#define __CUDACC_RTC__ 1
#define __CUDACC__ 1
#include <crt/host_defines.h>
#include <vector_types.h>
#include <device_types.h>
extern const __attribute__((device)) uint3 threadIdx, blockIdx;
extern const __attribute__((device)) dim3 blockDim, gridDim;
extern const __attribute__((device)) int warpSize;
extern "C" __attribute__((host)) __attribute__((device)) int cudaConfigureCall(dim3, dim3, size_t = 0, void* = 0);
extern "C" __attribute__((host)) __attribute__((device)) unsigned __cudaPushCallConfiguration(dim3, dim3, size_t = 0, void* = 0);
#include <vector_functions.h>
#include <crt/device_functions.h>
#include <device_atomic_functions.h>
#include <sm_20_intrinsics.h>
#include <sm_30_intrinsics.h>
#include <sm_32_intrinsics.h>
#include <sm_35_intrinsics.h>
#include <sm_61_intrinsics.h>
#include <sm_32_atomic_functions.h>
#include <sm_35_atomic_functions.h>
#include <sm_60_atomic_functions.h>
#undef __CUDACC_RTC__
#include <library_types.h>
#if __CUDA_ARCH__ >= 900
#define _CG_CLUSTER_INTRINSICS_AVAILABLE
#endif
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;
#pragma clang force_cuda_host_device begin
int min(int, int);
int max(int, int);
unsigned int min(unsigned int, unsigned int);
unsigned int max(unsigned int, unsigned int);
long min(long, long);
long max(long, long);
unsigned long min(unsigned long, unsigned long);
unsigned long max(unsigned long, unsigned long);
long long min(long long, long long);
long long max(long long, long long);
unsigned long long min(unsigned long long, unsigned long long);
unsigned long long max(unsigned long long, unsigned long long);
float min(float, float);
float max(float, float);
double min(double, double);
double max(double, double);
double rsqrt(double);
float rsqrtf(float);
float rsqrt(float);
double rcbrt(double);
float rcbrtf(float);
float rcbrt(float);
double sinpi(double);
float sinpif(float);
float sinpi(float);
double cospi(double);
float cospif(float);
float cospi(float);
double erfinv(double);
float erfinvf(float);
float erfinv(float);
double erfcinv(double);
float erfcinvf(float);
float erfcinv(float);
double erfcx(double);
float erfcxf(float);
float erfcx(float);
double normcdf(double);
float normcdff(float);
float normcdf(float);
double normcdfinv(double);
float normcdfinvf(float);
float normcdfinv(float);
double cyl_bessel_i0(double);
float cyl_bessel_i0f(float);
float cyl_bessel_i0(float);
double cyl_bessel_i1(double);
float cyl_bessel_i1f(float);
float cyl_bessel_i1(float);
double rhypot(double, double);
float rhypotf(float, float);
double norm3d(double, double, double);
float norm3df(float, float, float);
double rnorm3d(double, double, double);
float rnorm3df(float, float, float);
double norm4d(double, double, double, double);
float norm4df(float, float, float, float);
void sincospi(double, double*, double*);
void sincospif(float, float*, float*);
#pragma clang force_cuda_host_device end
