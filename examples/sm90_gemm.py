"""A Hopper matrix product at cuBLAS speed: TMA, WGMMA, warp specialisation, in one source string.

The kernel is persistent and needs no header at all, only the right architecture: ``wgmma`` and
``setmaxnreg`` exist for sm_90a and not for sm_90, which is why `RawModule` compiles for the
device's own architecture. Its parameters are three tensor maps made in Python and three ints.
Takes CuPy arrays and torch tensors. Run it: ``python -m examples.sm90_gemm``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import rtcompile
from examples import matrices

BLOCK_M, BLOCK_N, BLOCK_K, STAGES, CLUSTER = 128, 256, 64, 4, 2

SOURCE = f"""
constexpr int block_m = {BLOCK_M}, block_n = {BLOCK_N}, block_k = {BLOCK_K};
constexpr int stages = {STAGES};    // tiles of A and of B in flight
constexpr int cluster = {CLUSTER};   // blocks, one above the other, that share each tile of B
"""
SOURCE += r"""
using u32 = unsigned int;
using u64 = unsigned long long;

// A CUtensorMap, encoded by the host; the TMA unit reads it where the launch put it.
struct alignas(64) TensorMap { char bytes[128]; };

enum Type { f16, bf16 };

constexpr int consumers = 2;     // warpgroups, each with 64 rows of the block's result
constexpr int row_bytes = 128;   // of every tile: 64 elements, swizzled by TMA
constexpr int group = 8;         // rows of clusters walked together, so that L2 serves B again

struct Shared {
    alignas(1024) char a[stages][block_m * row_bytes];
    alignas(1024) char b[stages][block_n * row_bytes];
    alignas(1024) char c[consumers][2][64 * row_bytes];
    alignas(8) u64 full[stages];   // the stage's bytes have arrived
    alignas(8) u64 empty[stages];  // all consumers of the cluster are done with them
};

__device__ u32 address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// ---- mbarriers ----
__device__ void init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals));
}
__device__ void expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(address(barrier)), "r"(bytes) : "memory");
}
__device__ void arrive(u64* barrier, u32 block_in_cluster) {
    asm volatile("{\n.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}"
                 ::"r"(address(barrier)), "r"(block_in_cluster) : "memory");
}
__device__ void wait(u64* barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}"
                 ::"r"(address(barrier)), "r"(parity) : "memory");
}
__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- TMA ----
__device__ void load(void* tile, const TensorMap& map, int x, int y, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(address(tile)), "l"(&map), "r"(x), "r"(y), "r"(address(barrier)) : "memory");
}
// The same bytes to the same address in every block of the cluster, each signalled by its own barrier.
__device__ void load_multicast(void* tile, const TensorMap& map, int x, int y, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(address(tile)), "l"(&map), "r"(x), "r"(y), "r"(address(barrier)),
                   "h"((unsigned short)((1 << cluster) - 1)) : "memory");
}
__device__ void store(const TensorMap& map, int x, int y, const void* tile) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;"
                 ::"l"(&map), "r"(x), "r"(y), "r"(address(tile)) : "memory");
}

// ---- WGMMA ----
// Names a swizzled tile to the tensor cores. Groups of 8 rows lie 1 KiB apart; `panel` is how far
// apart 64 columns of a row-major B lie. The address is cut to 18 bits, since that of a block which
// is not the cluster's first has its rank above them.
__device__ u64 descriptor(const void* tile, u32 panel) {
    const u64 swizzle_128_bytes = 1ull << 62;
    return (u64)((address(tile) & 0x3ffff) >> 4) | (u64)(panel >> 4) << 16 | 64ull << 32 | swizzle_128_bytes;
}

#define SUM4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SUM16(i) SUM4(i), SUM4(i + 4), SUM4(i + 8), SUM4(i + 12)
#define SUM64(i) SUM16(i), SUM16(i + 16), SUM16(i + 32), SUM16(i + 48)
#define WGMMA(TYPE)                                                                             \
    asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %130, 0;\n"                \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                   \
                 " {SUM_REGISTERS}, %128, %129, accumulate, 1, 1, 0, %131;\n}"                  \
                 : SUM64(0), SUM64(64) : "l"(a), "l"(b), "r"((int)accumulate), "n"(b_rows))

// sum (+)= a[64, 16] @ b[16, 256], in the background. b_rows: b's rows are contiguous, not its columns.
template <Type type, bool b_rows>
__device__ void multiply(float (&sum)[128], u64 a, u64 b, bool accumulate) {
    if constexpr (type == f16) WGMMA("f16");
    else WGMMA("bf16");
}
__device__ void begin_multiply() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit_multiply() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int left> __device__ void wait_multiply(float (&sum)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
    // Keeps the compiler from reading a sum ahead of the wait, of which it knows nothing.
    #pragma unroll
    for (int i = 0; i < 128; ++i)
        if (left == 0) asm volatile("" : "+f"(sum[i])::"memory");
}

template <Type type> __device__ u32 round(float low, float high) {
    u32 pair;
    if constexpr (type == f16) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// The stage to use next; `parity` distinguishes this round of its barriers from the last.
struct Ring {
    int stage = 0;
    u32 parity = 0;
    __device__ void next() {
        if (++stage == stages) { stage = 0; parity ^= 1; }
    }
};

// The order in which clusters take tiles: down a group of rows, then the next column of it.
struct Tile { int m, n; };
__device__ Tile tile_at(int index, int tiles_m, int tiles_n) {
    const int per_group = group * tiles_n, first = index / per_group * group;
    const int rows = min(tiles_m - first, group), inside = index % per_group;
    return {first + inside % rows, inside / rows};
}

// c[m, n] = a[m, k] @ b[k, n]: a and c row-major, b of either order, everything through TMA, which
// reads zeros outside the matrices. It clips what it writes to c's own columns only in steps of 8.
template <Type type, bool b_rows>
__global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(128 * (consumers + 1), 1)
gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
     const __grid_constant__ TensorMap c_map, int tiles_m, int tiles_n, int steps) {
    extern __shared__ char storage[];
    Shared& shared = *reinterpret_cast<Shared*>(storage + (-address(storage) & 1023));
    const int rank = blockIdx.x % cluster, warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    const int first = blockIdx.x / cluster, stride = gridDim.x / cluster, tiles = tiles_m * tiles_n;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < stages; ++stage) {
            init(&shared.full[stage], 1);
            init(&shared.empty[stage], consumers * cluster);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();

    Ring ring;
    if (warpgroup == consumers) {  // the producer: one thread keeps TMA busy
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        for (int index = first; index < tiles && thread == 0; index += stride) {
            const Tile tile = tile_at(index, tiles_m, tiles_n);
            const int row = (tile.m * cluster + rank) * block_m, column = tile.n * block_n;
            for (int step = 0; step < steps; ++step, ring.next()) {
                u64* full = &shared.full[ring.stage];
                wait(&shared.empty[ring.stage], ring.parity ^ 1);
                expect(full, sizeof shared.a[0] + sizeof shared.b[0]);
                load(shared.a[ring.stage], a_map, step * block_k, row, full);
                // This block's share of B, for the whole cluster.
                constexpr int share = block_n / cluster, box = b_rows ? 64 : share;
                for (int n = rank * share; n < (rank + 1) * share; n += box) {
                    char* tile_b = shared.b[ring.stage] + n * row_bytes;
                    if (b_rows) load_multicast(tile_b, b_map, column + n, step * block_k, full);
                    else load_multicast(tile_b, b_map, step * block_k, column + n, full);
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float sum[128];
        for (int index = first; index < tiles; index += stride) {
            int previous = 0;
            for (int step = 0; step < steps; ++step, ring.next()) {
                wait(&shared.full[ring.stage], ring.parity);
                const u64 a = descriptor(shared.a[ring.stage] + warpgroup * 64 * row_bytes, 0);
                const u64 b = descriptor(shared.b[ring.stage], 64 * row_bytes);
                constexpr int b_step = b_rows ? 16 * row_bytes : 32;  // bytes to the next 16 of K
                begin_multiply();
                #pragma unroll
                for (int i = 0; i < block_k / 16; ++i)
                    multiply<type, b_rows>(sum, a + (i * 32 >> 4), b + (i * b_step >> 4), step || i);
                commit_multiply();
                // One product stays in flight; the one before it is done, and so is its stage.
                wait_multiply<1>(sum);
                if (step > 0 && thread < cluster) arrive(&shared.empty[previous], thread);
                previous = ring.stage;
            }
            wait_multiply<0>(sum);
            if (thread < cluster) arrive(&shared.empty[previous], thread);

            // Registers to a swizzled tile of 64 columns, tile to C; two such tiles take turns.
            const Tile tile = tile_at(index, tiles_m, tiles_n);
            const int row = (tile.m * cluster + rank) * block_m + warpgroup * 64;
            const int lane = thread % 32, r = thread / 32 * 16 + lane % 16;
            #pragma unroll
            for (int panel = 0; panel < block_n / 64; ++panel) {
                char* c = shared.c[warpgroup][panel % 2];
                if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
                #pragma unroll
                for (int j = 0; j < 8; j += 2) {
                    const float* v = sum + panel * 32 + j * 4;
                    const u32 chunk = (j + lane / 16) ^ (r % 8);  // TMA's swizzle of 16-byte chunks
                    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                                 ::"r"(address(c) + r * row_bytes + chunk * 16),
                                   "r"(round<type>(v[0], v[1])), "r"(round<type>(v[2], v[3])),
                                   "r"(round<type>(v[4], v[5])), "r"(round<type>(v[6], v[7])) : "memory");
                }
                // TMA reads through another path than the stores went: order them, in every thread.
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
                if (thread == 0) store(c_map, tile.n * block_n + panel * 64, row, c);
            }
        }
        if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    cluster_sync();  // a block that left early could no longer be signalled, or written to
}
""".replace("SUM_REGISTERS", ", ".join(f"%{i}" for i in range(128)))

OPTIONS = ("-std=c++17",)
Binder = Callable[[Any, Any, Any], Callable[[], None]]
TYPES = {"float16": "f16", "bfloat16": "bf16"}
NAME_EXPRESSIONS = tuple(
    f"gemm<{type_}, {b_rows}>" for type_ in TYPES.values() for b_rows in ("true", "false")
)
# The struct Shared, and what it may lose to being aligned to 1 KiB.
SHARED_BYTES = STAGES * (BLOCK_M + BLOCK_N) * 128 + 4 * 64 * 128 + 2 * 1024


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile every kernel for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        SOURCE, options=OPTIONS, arch=arch, name_expressions=NAME_EXPRESSIONS, name="sm90_gemm.cu"
    )


@functools.cache
def load() -> rtcompile.RawModule:
    """Return the module; it is compiled for each device that a kernel is first wanted on."""
    return rtcompile.RawModule(code=SOURCE, options=OPTIONS, name_expressions=NAME_EXPRESSIONS)


def operands(a: Any, b: Any) -> tuple[matrices.Matrix, matrices.Matrix]:
    """Describe the operands, or raise what `bind` raises."""
    import cupy as cp

    left, right = matrices.matrix("a", a), matrices.matrix("b", b)
    (m, k), (inner, n) = left.shape, right.shape
    if k != inner or 0 in (m, n, k):
        raise ValueError(f"cannot multiply {left.shape} by {right.shape}")
    if left.dtype not in TYPES or left.dtype != right.dtype:
        raise ValueError(
            f"a and b must both be float16 or bfloat16, not {left.dtype}, {right.dtype}"
        )
    if not left.row_major:
        raise ValueError(f"a has strides {left.strides}; its rows must be contiguous")
    if not (right.row_major or right.column_major):
        raise ValueError(f"b has strides {right.strides}; its rows or columns must be contiguous")
    if left.device != right.device:
        raise ValueError(f"a is on device {left.device}, b on {right.device}")
    capability = cp.cuda.Device(left.device).compute_capability
    if capability != "90":
        raise ValueError(
            f"wgmma needs a Hopper GPU (90), not one of compute capability {capability}"
        )
    if max(*left.shape, *right.shape) >= 2**31:
        raise ValueError(f"a has shape {left.shape}, b {right.shape}; TMA coordinates have 31 bits")
    return left, right


def stored_columns(columns: int) -> int:
    """Return how many columns of the result are written: TMA reads any number, but stores eights."""
    return -(-columns // 8) * 8


def result(name: str, array: Any, left: matrices.Matrix, columns: int) -> matrices.Matrix:
    """Describe the result's array, or raise what `bind` raises."""
    matrix = matrices.matrix(name, array)
    shape = (left.shape[0], stored_columns(columns))
    if (matrix.shape, matrix.dtype, matrix.device) != (shape, left.dtype, left.device):
        raise ValueError(
            f"{name} must be {left.dtype} of shape {shape} on device {left.device}, "
            f"not {matrix.dtype} of shape {matrix.shape} on device {matrix.device}; "
            "the columns are a multiple of 8, since TMA stores 16 bytes or none"
        )
    if not matrix.row_major:
        raise ValueError(f"{name} has strides {matrix.strides}; its rows must be contiguous")
    if matrix.strides[0] < shape[1]:
        raise ValueError(f"{name} has strides {matrix.strides}; its rows must not overlap")
    return matrix


def tensor_map(matrix: matrices.Matrix, array: Any, box: Sequence[int]) -> Any:
    """Describe an array to TMA, its rows first (columns, if column-major), for boxes of 64 elements.

    A box of three dimensions makes the matrix the only one of a batch, as CUTLASS sees it.
    """
    if not matrices.is_torch(array):
        import cupy as cp

        array = cp.asarray(array)  # a view: never a copy
    array = array if matrix.row_major else array.T
    array = array[(None,) * (len(box) - 2)]
    return rtcompile.tensor_map(array, box, swizzle=2 * box[-1])


def bind(a: Any, b: Any, out: Any) -> Callable[[], None]:
    """Return what launches ``out = a @ b``, tensor maps encoded and all: for one product, many times.

    Parameters
    ----------
    a : array
        Row-major, (m, k): CuPy's or torch's, float16 or bfloat16, on a Hopper GPU.
    b : array
        (k, n), row-major or column-major: ``w.T`` of a row-major ``w`` is as good.
    out : array
        Row-major, (m, n rounded up to a multiple of 8); the columns beyond n become zeros.

    Raises
    ------
    TypeError, ValueError
        What this kernel cannot do: another dtype, layout, alignment or device. Nothing is launched.
    """
    import cupy as cp

    left, right = operands(a, b)
    (m, k), n = left.shape, right.shape[1]
    product = result("out", out, left, n)
    tiles_m, tiles_n = -(-m // (BLOCK_M * CLUSTER)), -(-n // BLOCK_N)
    with cp.cuda.Device(left.device) as device:
        order = "true" if right.row_major else "false"
        kernel = load().get_function(f"gemm<{TYPES[left.dtype]}, {order}>")
        kernel.max_dynamic_shared_size_bytes = SHARED_BYTES
        clusters = min(tiles_m * tiles_n, device.attributes["MultiProcessorCount"] // CLUSTER)
    arguments = (
        tensor_map(left, a, (BLOCK_M, BLOCK_K)),
        tensor_map(right, b, (BLOCK_K, 64) if right.row_major else (BLOCK_N // CLUSTER, BLOCK_K)),
        tensor_map(product, out, (64, 64)),
        *map(np.int32, (tiles_m, tiles_n, -(-k // BLOCK_K))),
    )

    def launch() -> None:
        with matrices.on_stream_of(a, left.device):
            kernel((clusters * CLUSTER,), (384,), arguments, shared_mem=SHARED_BYTES)

    return launch


def matmul(a: Any, b: Any, out: Any = None, *, bind: Binder = bind) -> Any:
    """Return ``a @ b``, in `out` or in a new array; limits and errors are those of `bind`."""
    left, right = operands(a, b)
    columns = right.shape[1]
    if out is None:
        with matrices.on_stream_of(a, left.device):
            out = matrices.empty(a, left.shape[0], stored_columns(columns))
    bind(a, b, out)()
    return out if columns % 8 == 0 else out[:, :columns]


# Odd sizes: rows and columns that fill no tile, one row, many tiles, a K that fills no step.
SIZES = ((1000, 1016, 520), (1, 8, 8), (777, 1304, 1096), (2048, 2048, 2048))


def check(cp: Any, matmul: Callable[[Any, Any], Any] = matmul) -> dict[str, float]:
    """Compare with float64 products of the same inputs; return the relative error of each case.

    Raises
    ------
    AssertionError
        An error above that of rounding the result to 16 bits.
    """
    errors = {}
    for library, random, double in (*_cupy_cases(cp), *_torch_cases()):
        for m, n, k in SIZES:
            for order in ("rows", "columns"):
                a = random(m, k)
                b = random(k, n) if order == "rows" else random(n, k).T
                got, expected = double(matmul(a, b)), double(a) @ double(b)
                error = float(((got - expected) ** 2).sum() / (expected**2).sum()) ** 0.5
                case = f"{library} {m}x{n}x{k}, b by {order}"
                assert error <= (4e-3 if "bfloat16" in library else 5e-4), f"{case}: {error:.2e}"
                errors[case] = error
    return errors


def _cupy_cases(cp: Any) -> list[tuple[str, Any, Any]]:
    def random(rows: int, columns: int) -> Any:
        return cp.random.standard_normal((rows, columns), dtype=cp.float32).astype(cp.float16)

    return [("cupy float16", random, lambda array: array.astype(cp.float64))]


def _torch_cases() -> list[tuple[str, Any, Any]]:
    try:
        import torch
    except ImportError:
        return []

    def case(dtype: Any) -> tuple[str, Any, Any]:
        def random(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, device="cuda", dtype=dtype)

        return (str(dtype), random, lambda tensor: tensor.double())

    return [case(torch.float16), case(torch.bfloat16)]


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check, archs=("sm_90a",))
