"""Values of every kind, for arguments of other types."""

import datetime
import decimal
import enum
import io
import itertools
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rtcompile import Arch, CompileRequest, ObjectCode

OPTIONS = [
    *("-G", "-lineinfo", "-O3", "-DX", "-DX=1", "-DX=(", "-UX", "-I", "-I.", "-I /proc/nowhere", "-D", ""),
    *("-arch=sm_90", "-arch=sm_999", "-arch=sm_²", "-arch", "-arch=all", "-arch=native", "-arch="),
    *("-gencode", "arch=compute_90,code=sm_90", "-gencode=arch=,code=", "-gencode arch=x", "-std="),
    *("-std=c++99", "-std=c++20", "-rdc=true", "-rdc=x", "-dlto", "-maxrregcount=x", "-Xptxas", "-E"),
    *("-maxrregcount=-1", "-Xptxas=-v", "-Xptxas -v,-O0", "-include", "-include=nowhere.h", "-o x"),
    *("--options-file=nowhere", "-optf", "@nowhere", "-Xcompiler=-O3", "-ccbin=/proc/nowhere", "--", "-"),
    *("-no", "--nothing=3", "nothing", "'", '"', "-D'", "\\", "$(id)", "`id`", ";", "-DX=$(id)"),
    *("-split-compile=x", "-diag-suppress=", "--frandom-seed=;", "-w", "-Werror", "-lcudadevrt", "-lm"),
]  # fmt: skip
# Arguments of the command.
WORDS = [
    *("k.cu", "odd.cu", "empty", "nowhere", ".", "/", "-", "--", "", "\udcff", "²", "9" * 5000, "-o"),
    *("--arch", "sm_90", "--arch=90", "-n", "g", "f<", "--json", "--timeout", "nan", "inf", "-DX", "0"),
    *("--memory-limit", "1e400", "--backend", "nvcc", "--target", "ptx", "list", "stats", "prune"),
    *("verify", "--size", "-1", "--name", "a\nb", "--link", "--trace", "x", "-h", "--block", "--kernel"),
]  # fmt: skip
# Settings by their names after RTCOMPILE_.
ENVIRONMENT = [
    *("FALLBACK", "PCH", "TIMEOUT", "MEMORY_LIMIT", "CACHE_SIZE", "JOBS", "LOG", "JIT"),
    *("CACHE_DIR", "CUTLASS_PATH", "BUNDLES"),
]  # fmt: skip


class Text(str):
    """A subclass of str."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare me")

    def encode(self, *_: Any) -> bytes:  # type: ignore[override]
        raise RuntimeError("do not encode me")


class Named(str, enum.Enum):
    NAME = "k.cu"


class Number(enum.IntEnum):
    NINETY = 90


class Hostile:
    """An object whose every operation raises."""

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError("do not touch me")

    __repr__ = __str__ = __bool__ = __eq__ = __len__ = __float__ = __index__ = _refuse
    __hash__ = _refuse


class OddPath:
    def __init__(self, path: Any) -> None:
        self.path = path

    def __fspath__(self) -> Any:
        return self.path


def values(known: ObjectCode) -> list[Callable[[], Any]]:
    """Return functions that create values of unrelated types."""
    plain = [
        *(None, True, False, 0, 1, -1, 90, 3.5, 10**30, -(10**30), 10**5000, 1e-300, 1e300),
        *(
            math.nan,
            math.inf,
            -math.inf,
            2**31,
            2**63,
            1j,
            NotImplemented,
            ...,
            object(),
            Hostile(),
        ),
        *("", " ", "\0", "a\0b", "\ud800", "\udcff", "é", "\n", "a\nb", "²", "٣", "9" * 5000),
        *("x" * 100_000, "\u2028", "\033[2J", "{0}", "%s", "-", "--", "'", '"', "\\", "..", "/"),
        *(".", "/proc/nowhere/k.cu", "sm_90", "sm_999", "compute_90", "auto", "nvcc", "nvrtc"),
        *("inf", "nan", "1e999", "2G", "-1", "0", "1", "k<float>", "f<float>", "f<"),
        *(
            "float* x, int n",
            ")( int",
            b"",
            b"sm_90",
            b"\xff\xfe",
            bytearray(b"x"),
            memoryview(b"x"),
        ),
        *((), (1,), ("x", None), [], [""], ["\0"], ["\ud800"], [[]], [b"x"], {}, {"a": 1}, set()),
        *(frozenset({"-G"}), range(3), slice(3), io.StringIO(), io.BytesIO(), sys, str, print),
        *(np.int64(90), np.float32(9), np.float64("nan"), np.bool_(True), np.str_("k.cu")),
        *(np.zeros(2), np.zeros(0), np.array("x"), np.datetime64("nat", "s"), Text("k.cu")),
        *(decimal.Decimal("NaN"), Named.NAME, Number.NINETY, Path("k.cu"), Path("k\0.cu")),
        *(Path("/proc/nowhere"), Exception("x"), datetime.timedelta(seconds=1)),
        *(OddPath("k.cu"), OddPath(b"k.cu"), OddPath(3)),
        *(Arch(9, 0), CompileRequest("x"), known, types.SimpleNamespace(_build=3)),
    ]
    made: list[Callable[[], Any]] = [
        lambda: iter([]),
        lambda: (f"x{i}" for i in range(3)),
        lambda: (i for i in range(3)),
        lambda: itertools.count(),
    ]
    return [*((lambda value=value: value) for value in plain), *made]
