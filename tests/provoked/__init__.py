"""Cases that make real compilers print the catalogue's messages: one row per message and situation."""

from tests.provoked.cases import EMPTY, Provoked, cases
from tests.tables import rows

__all__ = [
    "AS_REPORTED",
    "BY_KERNELS",
    "BY_NVCC",
    "BY_NVJITLINK",
    "BY_NVRTC",
    "EMPTY",
    "MIXED_NVCC",
    "NEW_CCCL",
    "OLD_WHEELS",
    "PLAIN_NVJITLINK",
    "PLAIN_NVRTC",
    "SHARED_80000",
    "STRAY_HEADERS",
    "Provoked",
    "coverage",
]

BY_KERNELS = cases("kernels.txt")
BY_NVRTC = [*cases("options_and_headers.txt"), *BY_KERNELS, *cases("mistakes.txt")]
BY_NVCC = cases("nvcc.txt")
# (row, nvJitLink's message, text of the hint, (toolkit, kind of input, input, options))
BY_NVJITLINK = [
    (row, message, hint, (how["toolkit"], how["kind"], source, how["options"]))
    for row, message, hint, how, source in rows("provoked/nvjitlink.txt")
]
AS_REPORTED = [(message, row, hint) for row, message, hint, *_ in rows("provoked/reported.txt")]
[SHARED_80000] = (
    case.values[1].source for case in BY_KERNELS if case.values[0] == "static-shared-memory"
)

PLAIN_NVRTC = """
import ctypes, json, sys
job = json.load(sys.stdin)
for path in job["preload"]:
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
nvrtc, program, size = ctypes.CDLL(job["library"]), ctypes.c_void_p(), ctypes.c_size_t()
source, options = job["source"].encode(), [option.encode() for option in job["options"]]
nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None)
nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetProgramLog(program, log)
print(log.value.decode())
if nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0:
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    open("kernel.cubin", "wb").write(code.raw)
"""
PLAIN_NVJITLINK = """
import ctypes, sys
path, kind, given, *options = sys.argv[1:]
nvjitlink, handle, size = ctypes.CDLL(path), ctypes.c_void_p(), ctypes.c_size_t()
arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
if nvjitlink.nvJitLinkCreate(ctypes.byref(handle), len(options), arguments) == 0:
    data = open(given, "rb").read()
    nvjitlink.nvJitLinkAddData(handle, int(kind), data, ctypes.c_size_t(len(data)), b"input")
    nvjitlink.nvJitLinkComplete(handle)
nvjitlink.nvJitLinkGetErrorLogSize(handle, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value + 1)
nvjitlink.nvJitLinkGetErrorLog(handle, log)
print(log.value.decode())
"""
OLD_WHEELS = (
    "nvidia-cuda-nvrtc-cu12==12.4.127",
    "nvidia-cuda-runtime-cu12==12.4.127",
    "nvidia-cuda-nvcc-cu12==12.4.131",
    "nvidia-cuda-cccl-cu12==12.4.127.post1",
)
# Parts of another CCCL, as a wrong -I includes them.
STRAY_HEADERS = {
    "old_diagnostic_h": {"cuda/std/__cccl/diagnostic.h": "#pragma once\n"},
    "old_cccl_version": {"cuda/version": "#define CCCL_VERSION 1000000\n"},
}
NEW_CCCL = ("nvidia-cuda-cccl==13.3.5.0.6",)
MIXED_NVCC = (
    "nvidia-cuda-nvcc==13.5.37",
    "nvidia-cuda-crt==13.5.37",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-nvvm==13.0.88",
)


def coverage() -> dict[str, str]:
    """Return for each row how it is tested: "provoked" with a real compiler, or "as reported"."""
    provoked = {param.values[0] for param in (*BY_NVRTC, *BY_NVCC)}
    provoked |= {row for row, *_ in BY_NVJITLINK} | {"nvcc-and-nvvm", "header-there"}
    reported = {row for _, row, _ in AS_REPORTED}
    return {row: "provoked" if row in provoked else "as reported" for row in provoked | reported}
