"""Compiles sources that DeepGEMM, FlashInfer and cuDF compile at run time, by rtcompile and by NVRTC alone.

``python -m benchmarks.jit_sources FOLDER [--only TEXT] [--save]``: FOLDER contains checkouts named DeepGEMM,
flashinfer, cudf, cutlass (DeepGEMM's version) and cccl (cuDF's version), each with a file COMMIT. They are not
part of this repository. With --only, the other saved outcomes are kept. DeepGEMM's and cuDF's sources are
written as their own JIT writes them, with template arguments of usual sizes; FlashInfer's are those of its
files that need no host code.

NVRTC alone gets the project's options, the toolkit's folders, what `rtcompile.compile` adds as CuPy does, and
the include that DeepGEMM's headers need. rtcompile gets the project's options alone and may fall back to NVCC.
"""

from __future__ import annotations

import collections
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _machine
from benchmarks.libcudacxx_tests import _compared, _first_error


class Source(NamedTuple):
    project: str
    name: str
    text: str
    arch: str
    options: tuple[str, ...]


# --- DeepGEMM ---------------------------------------------------------------------------------------

K, MN = "cute::UMMA::Major::K", "cute::UMMA::Major::MN"
BF16, FP8, FP4 = (
    "cutlass::bfloat16_t",
    "cutlass::float_e4m3_t",
    "cutlass::detail::float_e2m1_unpacksmem_t",
)
IDENTITY = "epilogue::transform::EpilogueIdentity"
SPLITS = "epilogue::transform::EpilogueHeadSplits<128, 64, 128>"
# header, kernel, template arguments
DEEP_GEMM = (
    ("impls/sm90_bf16_gemm", "sm90_bf16_gemm_impl", f"{K}, {K}, 0, 4096, 7168, 1, 128, 128, 64, 128, 128, 128, 4, 128, 256, 2, true, 132, GemmType::Normal, false, {BF16}"),
    ("impls/sm90_bf16_gemm", "sm90_bf16_gemm_impl", f"{MN}, {K}, 0, 4096, 7168, 1, 64, 128, 64, 128, 128, 0, 4, 128, 128, 1, false, 132, GemmType::Normal, true, float"),
    ("impls/sm90_bf16_gemm", "sm90_bf16_gemm_impl", f"{K}, {K}, 0, 4096, 7168, 4, 128, 128, 64, 128, 128, 128, 4, 128, 256, 1, false, 132, GemmType::MGroupedContiguous, false, {BF16}"),
    ("impls/sm90_bf16_gemm", "sm90_bf16_gemm_impl", f"{K}, {K}, 0, 4096, 7168, 4, 128, 128, 64, 128, 128, 128, 4, 128, 256, 1, false, 132, GemmType::MGroupedMasked, false, {BF16}"),
    ("impls/sm90_bmk_bnk_mn", "sm90_bmn_bnk_mn_gemm_impl", "128, 128, 512, 128, 128, 64, 4, 4, 128, 256"),
    ("impls/sm90_fp8_gemm_1d1d", "sm90_fp8_gemm_1d1d_impl", "0, 4096, 7168, 1, 128, 128, 128, 128, 128, 4, 128, 256, 1, false, 132, GemmType::Normal, float"),
    ("impls/sm90_fp8_gemm_1d1d", "sm90_fp8_gemm_1d1d_impl", "0, 4096, 7168, 4, 128, 128, 128, 128, 128, 4, 128, 256, 1, false, 132, GemmType::KGroupedContiguous, float"),
    ("impls/sm90_fp8_gemm_1d2d", "sm90_fp8_gemm_1d2d_impl", f"{K}, 0, 4096, 7168, 1, 128, 128, 128, 128, 128, 128, 4, 128, 256, 1, false, 132, GemmType::Normal, {BF16}, {IDENTITY}"),
    ("impls/sm90_fp8_gemm_1d2d", "sm90_fp8_gemm_1d2d_impl", f"{K}, 0, 4096, 7168, 4, 128, 128, 128, 128, 128, 128, 4, 128, 256, 1, false, 132, GemmType::MGroupedMasked, {BF16}, {IDENTITY}"),
    ("impls/sm90_fp8_gemm_1d2d", "sm90_fp8_gemm_1d2d_impl", f"{MN}, 0, 4096, 7168, 1, 128, 128, 128, 128, 128, 128, 4, 128, 256, 1, false, 132, GemmType::Normal, {BF16}, {SPLITS}"),
    ("impls/sm90_fp8_mqa_logits", "sm90_fp8_mqa_logits", "64, 128, false, 2, 256, 3, 3, 132, 128, 512, float"),
    ("impls/sm90_fp8_mqa_logits", "sm90_fp8_mqa_logits", "32, 128, true, 4, 256, 3, 3, 132, 128, 512, float"),
    ("impls/sm90_fp8_paged_mqa_logits", "sm90_fp8_paged_mqa_logits", "1, 64, 128, 64, false, false, 3, 3, 256, 128, 512, float"),
    ("scheduler/sm90_paged_mqa_logits", "sched::sm90_paged_mqa_logits_metadata|sm90_paged_mqa_logits_metadata", "32, 256, 132, false"),
    ("impls/sm90_tf32_hc_prenorm_gemm", "sm90_tf32_hc_prenorm_gemm_impl", "24, 7168, 64, 32, 64, 16, 128, 6, 128, 128"),
    ("impls/smxx_clean_logits", "smxx_clean_logits", "1, 256, 8, float"),
    ("impls/smxx_layout", "transpose_fp32", "512, 64, 56"),
    ("impls/smxx_layout", "transpose_and_pack_fp32_into_ue8m0", "512, 48, 56, 1, false"),
    ("impls/smxx_layout", "pack_fp32_into_ue8m0", "4, 512, 128, 16, true, false"),
    ("impls/sm100_bf16_gemm", "sm100_bf16_gemm_impl", f"{K}, {K}, 0, 4096, 7168, 128, 128, 64, 1, 128, 128, 128, 4, 128, 128, 1, false, 148, 64, false, false, GemmType::Normal, false, {BF16}, 100"),
    ("impls/sm100_bf16_gemm", "sm100_bf16_gemm_impl", f"{K}, {K}, 0, 4096, 7168, 128, 128, 64, 1, 128, 128, 128, 4, 128, 128, 2, false, 148, 16, false, false, GemmType::Normal, true, float, 100"),
    ("impls/sm100_bmk_bnk_mn", "sm100_bmn_bnk_mn_gemm_impl", "128, 128, 512, 128, 128, 64, 4, 128, 128, 4, 256"),
    ("impls/sm100_fp8_fp4_gemm_1d1d", "sm100_fp8_fp4_gemm_1d1d_impl", f"{K}, {K}, 128, 128, 128, 0, 4096, 7168, 128, 128, 128, 1, 128, 128, 128, 4, 128, 128, 1, false, 148, false, false, GemmType::Normal, false, {FP8}, {FP8}, {BF16}, {IDENTITY}"),
    ("impls/sm100_fp8_fp4_gemm_1d1d", "sm100_fp8_fp4_gemm_1d1d_impl", f"{K}, {K}, 128, 32, 128, 0, 4096, 7168, 128, 128, 128, 4, 128, 128, 128, 4, 128, 128, 1, false, 148, false, false, GemmType::MGroupedMasked, false, {FP8}, {FP4}, {BF16}, {IDENTITY}"),
    ("impls/sm100_tf32_hc_prenorm_gemm", "sm100_tf32_hc_prenorm_gemm_impl", "24, 7168, 64, 32, 64, 16, 128, 6, 128, 128"),
    ("impls/sm100_mqa_logits", "sm100_mqa_logits", "false, 64, 128, false, 2, 256, 3, 3, 148, 128, 256, float"),
)  # fmt: skip


def deep_gemm(folder: Path) -> Iterator[Source]:
    include = folder / "DeepGEMM/deep_gemm/include"
    options = ("-std=c++20", "--diag-suppress=39,161,174,177,186,940")
    options += ("--ptxas-options=--register-usage-level=10", "--device-int128")
    options += (f"-I{include}", f"-I{folder}/cutlass/include")
    for number, (header, kernel, arguments) in enumerate(DEEP_GEMM):
        text = (include / f"deep_gemm/{header}.cuh").read_text()
        known = [
            name for name in kernel.split("|") if re.search(rf"\b{name.split('::')[-1]}\b", text)
        ]
        found = next(
            (name for name in known if "::" not in name or "namespace deep_gemm::sched" in text),
            known[-1],
        )
        source = (
            f"\n#include <deep_gemm/{header}.cuh>\n\nusing namespace deep_gemm;\n\n"
            "static void __instantiate_kernel() {\n"
            f"    auto ptr = reinterpret_cast<void*>(&{found}<{arguments}>);\n}};\n"
        )
        arch = "sm_100a" if "sm100" in header else "sm_90a"
        yield Source("DeepGEMM", f"{number:02} {found}", source, arch, options)


# --- FlashInfer -------------------------------------------------------------------------------------

FLASHINFER = (
    "kda/flashkda_decode_d128_*.cu",
    "kda/cake_*_packed_t1_*.cu",
    "cake_router_gemm/*_m[1248]_k7168_device.cu",
    "cake_selective_state_update/cuda/*_stp_*.cu",
)


def flashinfer(folder: Path) -> Iterator[Source]:
    csrc = folder / "flashinfer/csrc"
    options = ("-std=c++17", f"-I{folder}/flashinfer/include", f"-I{csrc}")
    for pattern in FLASHINFER:
        for path in sorted(csrc.glob(pattern)):
            yield Source("FlashInfer", path.stem, path.read_text(), "sm_100a", options)


# --- cuDF -------------------------------------------------------------------------------------------

COLUMN, OUTPUT = "cudf::column_device_view_core", "cudf::jit::mutable_vector_device_view"
WINDOW = "cudf::detail::fixed_window_wrapper"
UDF = {
    "transform": "template <class T> __device__ void f(T* out, T a, T b) { *out = a * b + a; }\n#define GENERIC_TRANSFORM_OP f",
    "nullable": "template <class T, class U> __device__ void f(T* out, U a, U b) { if (a && b) *out = *a * *b; }\n#define GENERIC_TRANSFORM_OP f",
    "binaryop": "template <class T> __device__ void f(T* out, T a, T b) { *out = a * b + a; }\n#define GENERIC_BINARY_OP f",
    "rolling": "template <class T, class U> __device__ void f(T* out, U const* in, int start, int count) "
    "{ T sum = 0; for (int i = 0; i < count; i++) sum += in[start + i]; *out = sum; }\n#define GENERIC_ROLLING_OP f",
    "join": "template <class T> __device__ void f(bool* out, T a, T b) { *out = a < b; }\n#define GENERIC_JOIN_FILTER_OP f",
}  # fmt: skip


def accessors(count: int, column: str, element: str, scalar_from: int = 9) -> str:
    each = [
        f"cudf::jit::column_accessor<{i}, {column}, {element}, {str(i >= scalar_from).lower()}, 0>"
        for i in range(count)
    ]
    return f"cudf::jit::type_list<{', '.join(each)}>"


def cudf(folder: Path, scratch: Path) -> Iterator[Source]:
    root = folder / "cudf/cpp"
    instances = [
        *(("transform", f"transform {t}", f"cudf::jit::transform_kernel<false, false, {accessors(2, COLUMN, t)}, {accessors(1, OUTPUT, t)}>") for t in ("float", "double", "int32_t", "int64_t")),
        ("transform", "transform scalar", f"cudf::jit::transform_kernel<false, false, {accessors(2, COLUMN, 'float', 1)}, {accessors(1, OUTPUT, 'float')}>"),
        ("nullable", "transform nulls", f"cudf::jit::transform_kernel<true, false, {accessors(2, COLUMN, 'float')}, {accessors(1, OUTPUT, 'float')}>"),
        *(("binaryop", f"binaryop {t}", f"cudf::binops::jit::binary_op_kernel<{t}, {t}, {t}, cudf::binops::jit::UserDefinedOp>") for t in ("float", "int64_t")),
        *(("rolling", f"rolling {t}", f"cudf::rolling::jit::rolling_window_kernel<{t}, {t}, rolling_udf_cuda, {WINDOW}, {WINDOW}>") for t in ("float", "int32_t")),
        ("join", "join filter", f"cudf::join::jit::filter_join_kernel<false, false, {accessors(2, COLUMN, 'int32_t')}>"),
    ]  # fmt: skip
    files = {"join": "join/jit/filter_join_kernel.cu", "nullable": "transform/jit/kernel.cu"}
    for number, (kind, name, instance) in enumerate(instances):
        given = scratch / f"cudf{number}/cudf/detail"
        given.mkdir(parents=True)
        (given / "operation_udf.cuh").write_text(UDF[kind])
        (given / "kernel_instance.cuh").write_text(f"\n #define CUDF_KERNEL_INSTANCE {instance}\n ")
        options = ("-std=c++20", "--diag-suppress=47", "--diag-suppress=161", "--device-int128")
        folders = (
            given.parents[1],
            root / "include",
            root / "src",
            folder / "cccl/libcudacxx/include",
        )
        options += ("--dopt=on", "--minimal", *(f"-I{each}" for each in folders))
        text = (root / "src" / files.get(kind, f"{kind}/jit/kernel.cu")).read_text()
        yield Source("cuDF", name, text, "sm_90", options)


# --- both sides -------------------------------------------------------------------------------------

RUNTIME = "-include=cuda_device_runtime_api.h"


def compare(source: Source) -> dict[str, Any]:
    """Compile by NVRTC alone and by rtcompile, and compare."""
    import rtcompile
    from rtcompile import toolkit
    from tests.plain_nvrtc import PlainNvrtc

    toolchain = toolkit.current()
    plain = PlainNvrtc(Path(toolchain.require_nvrtc().path).parent)
    own = [f"-arch={source.arch}", "-default-device", "-ftz=true"]
    own += [RUNTIME] if source.project == "DeepGEMM" else []
    own += [f"-I{directory.path}" for directory in toolchain.search]
    begin = time.perf_counter()
    theirs = plain.compile(source.text, *source.options, *own)
    found: dict[str, Any] = {
        "NVRTC": theirs.code is not None,
        "NVRTC s": time.perf_counter() - begin,
    }
    if theirs.code is None:
        found["NVRTC says"] = _first_error(theirs.log)
    begin = time.perf_counter()
    try:
        code = rtcompile.compile(
            source.text, options=source.options, arch=source.arch, name="kernel.cu"
        )
        found["rtcompile"], found["added"] = code.build.backend, code.build.why
        found["code"] = _compared(theirs.code or b"", code.code)
    except rtcompile.RtcompileError as error:
        found["rtcompile"], found["rtcompile says"] = None, str(error)[:300]
    return found | {"rtcompile s": time.perf_counter() - begin}


def tidy(outcome: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an outcome with rounded numbers and without this machine's paths."""
    texts = {k: v.replace(str(folder), "") for k, v in outcome.items() if isinstance(v, str)}
    return outcome | texts | {k: round(v, 1) for k, v in outcome.items() if isinstance(v, float)}


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    saved = Path(os.environ.get("OUT") or Path(__file__).parent / "results") / "jit_sources.json"
    outcomes: dict[str, Any] = {}
    if only and saved.is_file():
        outcomes = json.loads(saved.read_text())["results"]["each"]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["RTCOMPILE_CACHE_DIR"] = f"{scratch}/cache"
        sources = [*deep_gemm(folder), *cudf(folder, Path(scratch)), *flashinfer(folder)]
        for source in (s for s in sources if only in f"{s.project} {s.name}"):
            outcome = compare(source)
            outcomes[f"{source.project} {source.name}"] = tidy(outcome, folder)
            print(source.project, source.name, outcome, file=sys.stderr, flush=True)
    _machine.save("jit_sources", report(outcomes, folder))


def report(outcomes: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what the outcomes come to by project, the commits, and each outcome."""
    projects: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, outcome in outcomes.items():
        verdict = "NVRTC builds" if outcome["NVRTC"] else "NVRTC fails"
        by = f"{verdict}, rtcompile by {outcome['rtcompile']}: {outcome.get('code', 'failed')}"
        projects[name.split()[0]][by] += 1
    return {
        "sources": len(outcomes),
        "by project": {project: dict(counts) for project, counts in projects.items()},
        "commits": {p.parent.name: p.read_text().strip() for p in sorted(folder.glob("*/COMMIT"))},
        "each": outcomes,
    }


if __name__ == "__main__":
    main()
