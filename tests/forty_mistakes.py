"""Forty mistakes whose whole message is tested: the mistake, its location, its cause, and the next step.

`make mistakes` writes the messages to ``docs/mistakes.md``. Each has a fragment of the line that the
user wrote (`line`), which must be in the first block, and of the hint.
"""

from __future__ import annotations

from tests.mistakes import Mistake, body

__all__ = ["FORTY"]

_CUTE = "#include <cute/tensor.hpp>\nusing namespace cute;\n"
_TILE = (
    'template <int N> struct Tile { static_assert(N % 4 == 0, "N must be a multiple of 4"); float v[N]; };\n'
    "template <class T, int N> __device__ void load(T* p) { Tile<N> t; t.v[0] = p[0]; }\n"
    "template <int N> __device__ void outer(float* p) {\n  load<float, N + 1>(p);\n}\n"
)
_SCALE = "template <class T, int N> __global__ void scale(T* x) { x[0] = N; }\n"
_FRAGMENTS = "auto a = make_tensor<half_t>(Shape<_8>{{}});\n  auto b = make_tensor<half_t>(Shape<{b}>{{}});\n  auto c = make_tensor<float>(Shape<_4>{{}});\n  gemm(MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>{{}}, a, b, c);"


def _one(name: str, source: str, message: str, hint: str, **more: object) -> Mistake:
    return Mistake(name, source, message, hint, fallback=None, **more)  # type: ignore[arg-type]


FORTY = (
    # A line in a header, and the user's line that caused it.
    _one("fragments of other ranks for an MMA", _CUTE + body(_FRAGMENTS.format(b="_4, _2")), "no instance of overloaded function", "partition_fragment_A"),
    _one("a fragment of another size for an MMA", _CUTE + body(_FRAGMENTS.format(b="_8")), "static assertion failed", "A, B, C, in this order, as (V),(V),(V)"),
    _one("a gemm with the arguments in another order", _CUTE + body("auto mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{});\n  auto a = make_tensor<half_t>(Shape<_8, _1, _1>{});\n  auto c = make_tensor<float>(Shape<_4, _1, _1>{});\n  gemm(mma, c, a);"), "no instance of overloaded function", "A, B, C, in this order"),
    _one("a copy atom wider than the data", _CUTE + body("auto s = make_tensor(make_gmem_ptr(a), make_shape(Int<3>{}, Int<1>{}));\n  auto d = make_tensor<half_t>(make_shape(Int<3>{}, Int<1>{}));\n  copy(Copy_Atom<UniversalCopy<uint128_t>, half_t>{}, s, d);", "half_t* a"), "static assertion failed", "Write `copy(src, dst)`"),
    _one("a static_assert below three templates", _TILE + body("outer<4>(x);"), "N must be a multiple of 4", "N is 5. Line 4 (`load<float, N + 1>(p);`) gives it: change it there, for example so that N is 4"),
    _one("a block size of 0 for CUB", "#include <cub/block/block_reduce.cuh>\n" + body("using R = cub::BlockReduce<int, 0>;\n  __shared__ typename R::TempStorage s;\n  x[0] = R(s).Sum(x[0]);", "int* x"), "error: ", "line 3 (`using R = cub::BlockReduce<int, 0>;`) give BlockReduce a greater one: the number of threads per block in x"),
    _one("two mistakes in one source", body("x[0] = __sinff(x[0]);\n  x[threadIDx.x] = 1;"), '"__sinff" is undefined', "Is `threadIdx` meant?"),
    # Names of the host or of another library.
    _one("std::vector in a kernel", "#include <vector>\n" + body("std::vector<float> v(3);\n  x[0] = v[0];"), "error: ", "a fixed array"),
    _one("std::cout in a kernel", "#include <iostream>\n" + body("std::cout << x[0] << std::endl;"), "error: ", 'printf("%f\\n", value)'),
    _one("std::function in a kernel", "#include <functional>\n" + body("std::function<float(float)> f = [](float a) { return a; };\n  x[0] = f(x[0]);"), "error: ", "a template parameter"),
    _one("std::string in a kernel", "#include <string>\n" + body('std::string s = "a";\n  x[0] = s.size();'), "error: ", "sizeof(s) - 1"),
    _one("quotes from a document", "extern \u201cC\u201d __global__ void k(float* x) { x[0] = 1; }\n", "unrecognized token", 'Type " in its place'),
    _one("a no-break space", body("x[0]\u00a0= 1;"), "unrecognized token", "plain blank"),
    _one("NumPy's name of a type", body("float32 y = x[0];\n  x[1] = y;"), '"float32" is undefined', "Write `float`"),
    _one("a tensor of PyTorch as a parameter", body("x[0] = 1;", "torch::Tensor x"), "must be a class or namespace name", "data_ptr()"),
    _one("PyCUDA's complex numbers", "#include <pycuda-complex.hpp>\n" + body("x[0] = x[0] * x[0];", "pycuda::complex<float>* x"), "pycuda-complex.hpp", "cupy/complex.cuh"),
    _one("the name of a file as the source", "src/kernels/add.cu", "the source is a file's name", "read_text()"),
    # Templates and name expressions.
    _one("too few template arguments in a name expression", _SCALE, "scale<float>", "'scale<float, 4>'", names=("scale<float>",)),
    _one("template arguments in another order", _SCALE, "scale<4, float>", "'scale<float, 4>'", names=("scale<4, float>",)),
    _one("a value where a template wants a type", "template <class T> struct Pair { T a, b; };\n" + body("Pair<3> p;\n  x[0] = p.a;"), "expected a type specifier", "Pair<float>"),
    _one("a name expression without its namespace", "namespace ops { " + _SCALE.strip() + " }\n", "scale<int, 2>", "ops::scale<int, 2>", names=("scale<int, 2>",)),
    _one("a misspelt name expression", _SCALE, "scael<int, 2>", "'scale<int, 2>'", names=("scael<int, 2>",)),
    _one("NVRTC's pragma for names in a source", "#pragma nv_mangled_name scale<float>\ntemplate <class T> __global__ void scale(T* x) {}\n", "error: ", "name_expressions=['scale<float>']"),
    # Misspelt names.
    _one("a misspelt index", body("x[blockidx.x * blockDim.x + threadIdx.x] = 1;"), '"blockidx" is undefined', "Is `blockIdx` meant?"),
    _one("a misspelt function of CUDA", body("x[0] = __shfl_down_synch(0xffffffff, x[0], 1);"), "is undefined", "Is `__shfl_down_sync` meant?"),
    _one("a misspelt option", body("x[0] = 1;"), "--use-fast-math", "--use_fast_math", options=("--use-fast-math",)),
    # Fourteen others.
    _one("a function used above its definition", body("x[0] = helper(x[1]);") + "__device__ float helper(float a) { return a; }\n", '"helper" is undefined', "Move the declaration above its first use"),
    _one("a variable after its loop", body("for (int i = 0; i < 3; ++i) x[i] = 0;\n  x[i] = 1;"), '"i" is undefined', "Declare it in the scope that encloses both lines"),
    _one("cooperative groups' usual short name", "#include <cooperative_groups.h>\n" + body("auto g = cg::this_thread_block();\n  g.sync();"), "must be a class or namespace name", "namespace cg = cooperative_groups;"),
    _one("a misspelt member", "struct Params { float alpha; float beta; };\n" + body("x[0] = p.alhpa;", "float* x, Params p"), "has no member", "Is `alpha` meant?"),
    _one("a pointer to another type", "__device__ void count(int* p) { *p += 1; }\n" + body("count(x);"), "is incompatible with parameter", "a pointer of type int *"),
    _one("writing through a pointer to const", "__device__ void clear(float* p) { *p = 0; }\n" + body("clear(x);", "const float* x"), "is incompatible with parameter", "if it writes, write `float* x` in line 2"),
    _one("an array of a length from the launch", body("__shared__ float s[n];\n  s[0] = x[0];", "float* x, int n"), "must have a constant value", "`extern __shared__ float s[];`"),
    _one("a line end inside a string", body('printf("x is %f\n", x[0]);'), "missing closing quote", "raw string"),
    _one("Python's for", body("for i in range(10):\n    x[i] = 0;"), "expected a", "`for (int i = 0; i < n; ++i) { ... }`"),
    _one("OpenCL's index", body("int i = get_global_id(0);\n  x[i] = 1;"), '"get_global_id" is undefined', "blockIdx.x * blockDim.x + threadIdx.x"),
    _one("two types for one template parameter", "template <class T> __device__ T most(T a, T b) { return a > b ? a : b; }\n" + body("x[0] = most(1, 2.5f);"), "T would be int and float", "most<float>(1, 2.5f)"),
    _one("bfloat16 plus a double", "#include <cuda_bf16.h>\n" + body("x[0] = x[0] + 1.0;", "__nv_bfloat16* x"), 'more than one operator "+"', "__double2bfloat16(x)"),
    _one("an #ifdef without #endif", "#ifdef FAST\n" + body("x[0] = 1;"), "#endif", "Add #endif"),
    _one("a comment in Python syntax", "# scale the array\n" + body("x[0] = 1;"), "unrecognized preprocessing directive", "//"),
)  # fmt: skip
