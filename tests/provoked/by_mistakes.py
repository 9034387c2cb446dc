"""Cases of NVRTC's messages about common mistakes: names, templates, brackets, types."""

from __future__ import annotations

from tests.provoked.cases import case


def _kernel(text: str, before: str = "", parameters: str = "float* x, int n") -> str:
    return f"{before}__global__ void k({parameters}) {{\n  {text}\n}}\n"


_CUTE = "#include <cute/tensor.hpp>\nusing namespace cute;\n"
_CUTE_HEADERS = "12:cudart 12:crt 12:cccl 12:cutlass"
_SWIZZLED = (
    "make_tensor(make_smem_ptr(s), composition(Swizzle<1, 0, 2>{}, Layout<Shape<_8>>{})), c);"
)
_GEMM = (
    "auto a = make_tensor<half_t>(Shape<_8>{}); auto c = make_tensor<float>(Shape<_4>{});\n"
    "gemm(MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>{}, a, "
)

# row, NVRTC's message, text of the hint, source
_SLIPS = (
    ("source-is-a-file-name", "no storage class", "pathlib.Path('src/add.cu').read_text()", "src/add.cu"),
    ("odd-character", "unrecognized token", 'Type " in its place', _kernel("printf(\u201cx\u201d);")),
    ("odd-character", "unrecognized token", "plain blank", _kernel("n\u00a0= 1;")),
    ("name-of-elsewhere", '"float64" is undefined', "Write `double`", _kernel("float64 y = 1;")),
    ("name-of-elsewhere", "no storage class", "__global__ void", "__kernel void k(float* x) {}"),
    ("scope-of-elsewhere", "must be a class or namespace", "data_ptr()", _kernel("", parameters="at::Tensor x")),
    ("scope-unknown", "must be a class or namespace", "check the spelling", _kernel("qqzz::f();")),
    ("dynamic-shared-in-template", "declaration is incompatible", "`s` is declared with the types float and double", "__global__ void a(float* x) { extern __shared__ float s[]; x[0] = s[0]; }\n__global__ void b(double* x) {\nextern __shared__ double s[];\nx[0] = s[0]; }\n"),
    ("c-linkage-twice", 'has "C" linkage', "Give each its own name", 'extern "C" __global__ void k(float* x) {}\nextern "C" __global__ void k(int* x) {}\n'),
    ("kernel-in-class", "cannot be a member function", "Move it out of the class", "struct S { __global__ void k(float* x) {} };"),
    ("python-value", '"device" is undefined', "`tensor(4, device=0)`", _kernel("if (n < tensor(4, device=0)) x[0] = 0;")),
    ("name-of-elsewhere", '"None" is undefined', "the number that was meant", _kernel("n = None;")),
    ("placeholder", '"scale" is undefined', "`{{ scale }}` is not C++", _kernel("x[0] = {{ scale }} * x[0];")),
    ("class-without-semicolon", "linkage specification", "The struct P, whose } is in line 1", "struct P { float a; }\n" + _kernel("", 'extern "C" ')),
    ("class-without-semicolon", "", "Write };.", "struct P { float a; }\n" + _kernel("")),
    ("typename-missing", 'expected a ";"', "Write `typename A::type y`", _kernel("x[0] = f(S());", "struct S { using type = float; };\ntemplate <class A> __device__ float f(A a) { A::type y = 1; return y; }\n")),
    ("unparsed", "explicit type is missing", "`void less(...)`", _kernel("", "__device__ less(int a, int b) { return a < b; }\n")),
    ("unparsed", "expected a declaration", "the source has 2 } and 1 {", _kernel("}")),
    ("unparsed", "expected a statement", "Put { } around", _kernel("x[0] = 1; else x[0] = 2;")),
    ("missing-bracket", 'expected a ")"', "`x` and `int` stand side by side", _kernel("", parameters="float* x int n")),
    ("missing-bracket", 'expected a "}"', "The source has 2 { and 1 }", _kernel("if (n) {")),
    ("return-of-a-value", "return value type", "k is declared void", _kernel("return x[0];")),
    ("lambda-capture", "capture list", "Write [=]", _kernel("auto f = [](int j) { return x[j]; }; x[0] = f(1);")),
    ("shared-without-size", "incomplete type", "extern __shared__ float name[];", _kernel("__shared__ float s[];")),
    ("array-of-arrays", "may not have elements", "x[row * width + column]", _kernel("", parameters="float x[][]")),
    ("subscript", "pointer-to-object", "this expression is a float", _kernel("x[0][1] = 1;")),
    ("integers-only", "integral", "fmodf(a, b)", _kernel("x[0] = x[0] % 2.f;")),
    ("power", "must be a pointer", "pow(x, y)", _kernel("x[0] = x[0] ** 2;")),
    ("not-constant", "must have a constant value", "The condition of a static_assert", _kernel('static_assert(n < 3, "n");')),
    ("type-mismatch", "cannot be assigned", "without quotes", _kernel('x[0] = "1.0";')),
    ("asm-unclosed", 'expected a ")"', "begins in line 2 has 2 ( and 1 )", _kernel('asm("mov.u32 %0, 1;" : "=r"(n);')),
    ("asm-unclosed", 'expected a ")"', "no closing quote", _kernel('asm("mov.u32 %0, 1; : "=r"(n));')),
    ("asm-operand", "asm operand type size(8)", 'Write "l" ("d" for a double) in its place', _kernel('asm("mov.u32 %0, 1;" : "=r"(x));')),
    ("name-misspelt", '"blockIDx" is undefined', "Is `blockIdx` meant?", _kernel("x[blockIDx.x] = 1;")),
    ("name-misspelt", '"volume" is undefined', "Is `volumes` meant?", _kernel("x[0] = volume;", "__device__ float volumes;\n")),
    ("identifier-undeclared", '"Qqzz" is undefined', "parameter's type", _kernel("", parameters="Qqzz* x")),
    ("declared-elsewhere-in-source", '"f" is undefined', "ops::f", _kernel("x[0] = f(n);", "namespace ops { __device__ int f(int i) { return i; } }\n")),
    ("declared-elsewhere-in-source", '"f" is undefined', "in line 4", _kernel("x[0] = f(n);") + "__device__ int f(int i) { return i; }\n"),
    ("declared-elsewhere-in-source", '"i" is undefined', "i of line 2", _kernel("for (int i = 0; i < n; ++i) x[i] = 0;\n  x[i] = 1;")),
    ("member-unknown", "has no member", "Is `alpha` meant?", _kernel("x[0] = p.alhpa;", "struct P { float alpha, beta; };\n", "float* x, P p")),
    ("member-unknown", "has no member", "x, y, z, w", _kernel("x[0] = v.r;", parameters="float* x, float4 v")),
    ("mangled-name-pragma", "Error in parsing name expression", "name_expressions=['k<int>']", "#pragma nv_mangled_name k<int>\ntemplate <class T> __global__ void k(T* x) {}\n"),
    ("template-arguments", "too few arguments for class template", "A<float, 4>", _kernel("A<float> a;", "template <class T, int N> struct A { T v[N]; };\n")),
    ("template-arguments", "expected a type specifier", "A<float>", _kernel("A<3> a;", "template <typename T> struct A { T v; };\n")),
    ("template-deduction", "no instance of function template", "most<float>(1, 2.f)", _kernel("x[0] = most(1, 2.f);", "template <class T> __device__ T most(T a, T b) { return a; }\n")),
    ("no-constructor", "no instance of constructor", "constructors in the notes", _kernel("V v(n);", "struct V { __device__ V(int a, int b) {} };\n")),
    ("no-overload", "no instance of overloaded function", "candidates in the notes", _kernel("f(x, 1);", "__device__ void f(int) {}\n__device__ void f(int, int) {}\n")),
    ("static-assertion", "static assertion failed", "`N % 4 == 0` is false: N is 5. Line 3 (`A<5> a;`) gives it", _kernel("A<5> a;", "template <int N> struct A { static_assert(N % 4 == 0, \"N\"); };\n")),
    ("no-operator", 'no operator "+"', "operator+", _kernel("s = s + s;", "struct S { float v; };\n", "S s")),
    ("type-mismatch", "is incompatible with parameter", "reinterpret_cast", _kernel("f(x);", "__device__ void f(int*) {}\n")),
    ("type-mismatch", "is incompatible with parameter", "write `const float*` in line 1; if it writes, write `float* x` in line 2", _kernel("f(x);", "__device__ void f(float*) {}\n", "const float* x")),
    ("type-mismatch", "cannot be assigned", "dereference", _kernel("x[0] = x;")),
    ("const-write", "modifiable lvalue", "Remove const from", _kernel("x[0] = 1;", parameters="const float* x")),
    ("not-constant", "must have a constant value", "extern __shared__", _kernel("__shared__ float s[n];")),
    ("kernel-returns", "void return type", "Declare it void", "__global__ int k() { return 1; }"),
    ("argument-count", "too few arguments in function call", "as are declared", _kernel("f();", "__device__ void f(int) {}\n")),
    ("redeclared", "already been declared", "Rename", _kernel("int n = 0;")),
    ("no-access", "is inaccessible", "`public:`", _kernel("A a; a.v = 1;", "class A { int v; };\n")),
    ("string-across-lines", "missing closing quote", "raw string", _kernel('printf("a\n");')),
    ("character-constant", "too many characters", "double quotes", _kernel("printf('longer');")),
    ("comment-unclosed", "comment unclosed", "*/", _kernel("/* x[0] = 1;")),
    ("directive-unclosed", "#endif", "Add #endif", "#ifdef A\n" + _kernel("")),
    ("directive-unknown", "unrecognized preprocessing", "//", "# scale it\n" + _kernel("")),
    ("size-zero", "greater than zero", "the template argument N of A is 0", _kernel("A<0> a;", "template <int N> struct A { float v[N]; };\n")),
    ("missing-semicolon", 'expected a ";"', "Put ;", _kernel("x[0] = 1")),
    ("missing-bracket", 'expected a ")"', "has 2 ( and 1 ), and the ( of line 2", _kernel("x[0] = (1 + n;")),
    ("header-of-another-project", "open source file", "cupy/complex.cuh", "#include <pycuda-complex.hpp>\n"),
    ("header-of-another-project", "open source file", "data_ptr()", "#include <ATen/cuda/CUDAContext.h>\n"),
    ("python-syntax", 'expected a "("', "Python's syntax", _kernel("for i in range(n):")),
    ("not-an-expression", "expected an expression", "word at the caret", _kernel("x[0] = * ;")),
    ("name-of-elsewhere", '"hipThreadIdx_x" is undefined', "Write `threadIdx.x`", _kernel("x[hipThreadIdx_x] = 1;")),
    ("missing-bracket", 'expected a ")"', "Write `__restrict__`", _kernel("", parameters="float* restrict x, int n")),
    ("macro-value", "expected an expression", "pass -DSIZE=VALUE", "#define SIZE %(SIZE)s\n" + _kernel("x[0] = SIZE * n;")),
    ("macro-value", 'expected a ")"', "Write `#define SQR(v) ((v) * (v))`", "#define SQR(v) ((v) * (v));\n" + _kernel("x[0] = sqrtf(SQR(n));")),
    ("placeholder", "expected an expression", "`%(scale)f` is not C++", _kernel("x[0] = %(scale)f;")),
    ("brace-missing", "linkage specification", "the } of line 4, which is indented as that of an outer block, closes the { of line 2", 'extern "C" __global__ void k(int* x) {\n  if (x[0]) {\n    x[0] = 1;\n}\n\nextern "C" __global__ void l(int* x) {\n  x[0] = 1;\n}\n'),
    ("not-constant", "invalid narrowing conversion", "A template argument must be known", _kernel("A<blockDim.x> a;", "template <int N> struct A { float v[N]; };\n")),
    ("undefined-symbol", "Unresolved extern function", "f is declared in line 1 and used", _kernel("x[0] = f(n);", "__device__ float f(int);\n")),
    ("comma-in-index", "expression has no effect", "the comma in [n, 0] drops the first", _kernel("x[n, 0] = 1;")),
    ("unsigned-never-negative", "pointless comparison", "never below 0", _kernel("for (unsigned i = n; i >= 0; --i) x[i] = 0;")),
    ("shift-too-far", "shift count is too large", "1ULL << n", _kernel("x[0] = 1 << 40;")),
    ("missing-return", "missing return statement", "f can end without a return", _kernel("x[0] = f(n);", "__device__ float f(int n) { if (n > 1) return 1; }\n")),
    ("format-mismatch", "incompatible with corresponding format", "%f for float and double", _kernel('printf("%d\\n", x[0]);')),
    ("shared-constructor", "function-scope static __shared__ variable", "Let the threads assign", _kernel("__shared__ S s; x[0] = s.v;", "struct S { float v; __device__ S() : v(1) {} };\n")),
    ("odd-character", "unrecognized token", "encoding='utf-8-sig'", "\ufeff" + _kernel("n = 1;")),
    ("literal-suffix", "user-defined literal operator not found", "Write 0.0f.", _kernel("x[0] = 0f;")),
    ("literal-suffix", "user-defined literal operator not found", "Write 1.5f for a float, or 1.5 for a double", _kernel("x[0] = 1.5d;")),
    ("macro-value", 'expected a "]"', "Write `#define BLOCK 256`", "#define BLOCK 256;\n" + _kernel("x[n % BLOCK] = 1;")),
    ("macro-value", "expected an expression", "line 1 defines it as `= 256`", "#define BLOCK = 256\n" + _kernel("int i = BLOCK * n; x[i] = 1;")),
    ("doubled-braces", "expected a declaration", "`{{` is two braces", "struct P {{ float a; }};\n" + _kernel("")),
    ("comment-for-division", 'expected a ";"', "line 2 ends behind `n`", _kernel("int a = n // 2;\n  x[a] = 1;")),
    ("operator-of-struct", 'no operator "+"', "make_float3(a.x + b.x, a.y + b.y, a.z + b.z)", _kernel("x[0] = x[0] + x[1];", parameters="float3* x")),
    ("operator-of-struct", 'no operator "*"', "make_double2(a.x * b, a.y * b)", _kernel("x[0] = x[0] * 2.0;", parameters="double2* x")),
    ("argument-not-deduced", "no instance of overloaded function", "Write tex2D<float>(...)", _kernel("x[0] = tex2D(t, 0.5f, 0.5f);", parameters="float* x, cudaTextureObject_t t")),
    ("header-of-another-project", "open source file", "AMD's HIP", "#include <hip/hip_runtime.h>\n"),
)  # fmt: skip
_SLIPS_WITH_HEADERS = (
    ("name-inside", '"thread_scope_device" is undefined', "line 4 has cuda::thread_scope_device", "#include <cuda/atomic>\n" + _kernel("cuda::atomic_ref<int, thread_scope_device> a(n);\n  cuda::atomic_ref<int, cuda::thread_scope_device> b(n);")),
    ("name-inside", '"thread_scope_block" is undefined', "Write cuda::std::thread_scope_block.", "#include <cuda/atomic>\n" + _kernel("cuda::atomic_ref<int, thread_scope_block> a(n); a.store(1);")),
    ("operator-of-struct", 'no operator "*"', "Write cuCmulf(a, b)", _kernel("x[0] = x[0] * x[1];", "#include <cuComplex.h>\n", "cuFloatComplex* x")),
    ("namespace-inside", "must be a class or namespace name", "declares it as nvcuda::wmma", "#include <mma.h>\n" + _kernel("wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> f;")),
    ("name-inside", '"matrix_a" is undefined', "Write nvcuda::wmma::matrix_a.", "#include <mma.h>\n" + _kernel("nvcuda::wmma::fragment<matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> f;")),
    ("namespace-member-elsewhere", 'has no member "reduce"', "#include <cooperative_groups/reduce.h>", "#include <cooperative_groups.h>\n" + _kernel("auto w = cooperative_groups::coalesced_threads(); x[0] = cooperative_groups::reduce(w, n, cooperative_groups::plus<int>());")),
)  # fmt: skip

BY_MISTAKES = [
    *(case(row, message, hint, source=source) for row, message, hint, source in _SLIPS),
    *(
        case(row, message, hint, source=source, headers="12:cudart 12:crt 12:cccl")
        for row, message, hint, source in _SLIPS_WITH_HEADERS
    ),
    case(
        "std-replaced",
        'namespace "std" has no member "unordered_map"',
        "a sorted array",
        source="#include <cuda/std/cstdint>\n" + _kernel("std::unordered_map<int, int> m;"),
        headers="12:cudart 12:crt 12:cccl",
    ),
    case(
        "name-misspelt",
        '"block_size" is undefined',
        "Is `BLOCK_SIZE` meant?",
        source=_kernel("x[block_size * n] = 1;"),
        options="-DBLOCK_SIZE=128",
    ),
    case(
        "operator-removed",
        "more than one conversion function",
        "__CUDA_NO_HALF_OPERATORS__, an option of this build",
        source=_kernel("x[0] = x[1] + x[2];", "#include <cuda_fp16.h>\n", "__half* x"),
        options="-D__CUDA_NO_HALF_OPERATORS__",
        headers="12:cudart 12:crt 12:cccl",
    ),
    case(
        "name-expression",
        "__nv_name_map",
        "Write 'k<cuda::std::complex<float>>'",
        source="#include <cuda/std/complex>\ntemplate <class T> __global__ void k(T* x) { x[0] = x[1]; }\n",
        names=("k<complex<float>>",),
        headers="12:cudart 12:crt 12:cccl",
    ),
    case(
        "typename-wanted",
        'use the "typename" keyword',
        "Write `typename A<T>::type`",
        source="template <class T> struct A { using type = T; };\ntemplate <class T> __global__ void k(T* x) {\n"
        "  A<T>::type s = 0;\n  x[0] = T(s);\n}\n",
        names=("k<float>",),
    ),
    case("option-value-apart", "unrecognized option 16", "-DWINDOW=16", options="-DWINDOW 16"),
    case(
        "operator-of-struct",
        'no operator "*"',
        "float(a) * float(b)",
        source=_kernel(
            "x[0] = e[0] * e[1];", "#include <cuda_fp8.h>\n", "float* x, __nv_fp8_e4m3* e"
        ),
        arch="sm_89",
        headers="12:cudart 12:crt 12:cccl",
    ),
    case("option-misspelt", "unrecognized option", "--use_fast_math", options="-use_fast_maths"),
    case(
        "cute-shapes",
        "no instance of overloaded function",
        "A, B, C, in this order",
        source=_CUTE
        + _kernel(_GEMM.replace("_8", "_8, _2") + "make_tensor<half_t>(Shape<_4>{}), c);"),
        headers=_CUTE_HEADERS,
        slow=True,
    ),
    case(
        "cute-shapes",
        "no instance of overloaded function",
        "A, B, C, in this order",
        source=_CUTE + _kernel(_GEMM + "c);"),
        headers=_CUTE_HEADERS,
        slow=True,
    ),
    case(
        "cute-shapes",
        "no instance of overloaded function",
        "partition_fragment_A",
        source=_CUTE + _kernel(_GEMM + _SWIZZLED, "__shared__ half_t s[8];\n"),
        headers=_CUTE_HEADERS,
    ),
    case(
        "cute-shapes",
        "static assertion failed",
        "partition_fragment_A",
        source=_CUTE + _kernel(_GEMM + "make_tensor<half_t>(Shape<_8>{}), c);"),
        headers=_CUTE_HEADERS,
        slow=True,
    ),
]
