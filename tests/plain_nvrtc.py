"""NVRTC without rtcompile, for comparisons with a plain compile."""

import ctypes
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """The result of one compile; `code` is None if it failed."""

    code: bytes | None
    log: str


class PlainNvrtc:
    """One libnvrtc, opened from a folder of wheels."""

    def __init__(self, folder: Path) -> None:
        library = next(folder.glob("**/libnvrtc.so.*"))
        for builtins in library.parent.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(library))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def architectures(self) -> list[int]:
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(numbers)
        return list(numbers)

    def compile(
        self, source: str, *options: str, kind: str = "CUBIN", name: str = "kernel.cu"
    ) -> Outcome:
        library, program = self._library, ctypes.c_void_p()
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), name.encode(), 0, None, None
        )
        arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = library.nvrtcCompileProgram(program, len(options), arguments)
        log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode()
        code = None if failed else self._bytes(program, kind)
        library.nvrtcDestroyProgram(ctypes.byref(program))
        return Outcome(code, log)

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw
