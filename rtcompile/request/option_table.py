"""The table of compiler options: their spellings, values and compilers. It also makes each compiler's command line.

NVCC passes its arguments on through a shell and quotes only some of them. This module escapes the arguments that
NVCC quotes, and rejects others that contain a shell's special characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rtcompile.errors import InvalidRequest
from rtcompile.named import NamedTuple

if TYPE_CHECKING:
    from rtcompile.request.options import Options
    from rtcompile.request.values import Arch

# --- One row per compiler option ------------------------------------------------------------------

Version = tuple[int, int]


class Spec(NamedTuple):
    """One option.

    `name` is its long name, `also` its other spellings without dashes. `takes` is "nothing", "boolean", "number",
    "value", "values" (comma-separated, gathered over all occurrences), "path" or "macro"; a path or a macro may
    contain blanks, up to the next option. `implied` is the value when none follows. `nvrtc` is the first release that
    accepts it, or None. `why` tells the user why a compiler does not get the option; it is empty if that compiler
    behaves so anyway. `does` names a side effect, such as running a program, which an untrusted record must not have.
    `linker` is nvJitLink's spelling, if the option concerns it; older linkers than `linker_since` work without.
    """

    name: str
    also: tuple[str, ...] = ()
    takes: str = "nothing"
    nvrtc: Version | None = (12, 0)
    nvcc: bool = True
    why: str = ""
    implied: str = ""
    does: str = ""
    linker: str = ""
    linker_since: Version = (12, 0)

    @property
    def is_dropped(self) -> bool:
        """Whether no compiler gets it."""
        return self.nvrtc is None and not self.nvcc


_RUNS = "runs a program that the option chooses"
_WRITES = "writes a file that the option names"
_TIMES = "a build writes no files for its caller; `rtcompile profile` shows the times"
_HOST_ONLY = "it concerns host code, which NVRTC does not compile"
_LINKING = "it concerns the host's linker"
_OURS = "rtcompile makes and checks precompiled headers itself"
_LIBRARY_ONLY = "nvcc has no such option"

_only_nvcc = partial(Spec, nvrtc=None)
_neither = partial(Spec, nvrtc=None, nvcc=False)
_tuning = partial(Spec, takes="number", linker_since=(12, 4))

SPECS = (
    Spec("define-macro", ("D",), takes="macro"),
    Spec("undefine-macro", ("U",), takes="value"),
    Spec("include-path", ("I",), takes="path"),
    Spec("system-include", ("isystem",), takes="path"),
    Spec("idirafter", takes="path"),
    Spec("pre-include", ("include",), takes="path"),
    Spec("ptxas-options", ("Xptxas",), takes="values"),
    Spec("gpu-architecture", ("arch",), takes="value"),
    Spec("gpu-code", ("code",), takes="value"),
    Spec("generate-code", ("gencode",), takes="value"),
    Spec("device-debug", ("G",), linker="-g"),
    Spec("generate-line-info", ("lineinfo",), linker="-lineinfo"),
    Spec("use_fast_math"),
    Spec("ftz", takes="boolean", linker="-ftz"),
    Spec("prec-div", takes="boolean", linker="-prec-div"),
    Spec("prec-sqrt", takes="boolean", linker="-prec-sqrt"),
    Spec("fmad", takes="boolean", linker="-fma"),
    Spec("std", takes="value"),
    Spec("maxrregcount", takes="number", linker="-maxrregcount"),
    Spec("relocatable-device-code", ("rdc",), takes="boolean"),
    Spec("extensible-whole-program", ("ewp",)),
    Spec("dlink-time-opt", ("dlto", "lto")),
    Spec("gen-opt-lto"),
    Spec("dopt", takes="value"),
    Spec("extra-device-vectorization"),
    Spec("disable-warnings", ("w",)),
    Spec("Werror", ("warning-as-error",), takes="values", nvrtc=(13, 3), implied="all-warnings"),
    Spec("diag-suppress", takes="values"),
    Spec("diag-error", takes="values"),
    Spec("diag-warn", takes="values"),
    Spec("display-error-number", ("err-no",)),
    Spec("no-display-error-number", ("no-err-no",)),
    Spec("brief-diagnostics", ("brief-diag",), takes="boolean"),
    Spec("optimization-info", ("opt-info",), takes="values"),
    Spec("restrict"),
    Spec("fdevice-syntax-only"),
    _neither("time", takes="value", why=_TIMES, does=_WRITES),
    _neither("fdevice-time-trace", takes="value", why=_TIMES, does=_WRITES),
    _tuning("split-compile", nvrtc=(12, 6), linker="-split-compile"),
    _tuning("jump-table-density", ("jtd",), linker="-jump-table-density"),
    Spec("device-stack-protector", takes="boolean", nvrtc=(12, 6)),
    Spec("Ofast-compile", ("Ofc",), takes="value", nvrtc=(12, 6)),
    Spec("frandom-seed", takes="value", nvrtc=(12, 9)),
    # NVRTC only. nvcc compiles for the host too: it has 128-bit integers, and unmarked functions are host
    # functions.
    Spec("device-as-default-execution-space", ("default-device",), nvcc=False),
    Spec("device-int128", nvcc=False),
    Spec("device-float128", nvrtc=(12, 6), nvcc=False, why=_LIBRARY_ONLY),
    Spec("minimal", nvcc=False, why=_LIBRARY_ONLY),
    Spec("no-source-include", nvcc=False, why=_LIBRARY_ONLY),
    Spec("modify-stack-limit", takes="boolean", nvcc=False, why=_LIBRARY_ONLY),
    Spec("builtin-move-forward", takes="boolean", nvcc=False, why=_LIBRARY_ONLY),
    Spec("builtin-initializer-list", takes="boolean", nvcc=False, why=_LIBRARY_ONLY),
    Spec("no-cache", nvrtc=(12, 9), nvcc=False, why=_LIBRARY_ONLY),
    # Options that rtcompile sets itself.
    _neither("pch", why=_OURS),
    _neither("create-pch", takes="value", why=_OURS),
    _neither("use-pch", takes="value", why=_OURS),
    _neither("pch-dir", takes="value", why=_OURS),
    _neither("pch-messages", takes="boolean", why=_OURS, implied="true"),
    _neither("pch-verbose", takes="boolean", why=_OURS, implied="true"),
    _neither("instantiate-templates-in-pch", takes="boolean", why=_OURS, implied="true"),
    _neither("cubin", why="target='cubin' selects it"),
    _neither("ptx", why="target='ptx' selects it"),
    _neither("fatbin", why="target='fatbin' selects it"),
    _neither("ltoir", why="target='ltoir' selects it"),
    _neither("compile", ("c",), why="target='object' selects it"),
    # nvcc only.
    _only_nvcc("expt-relaxed-constexpr", why="NVRTC has every function on the device"),
    _only_nvcc(
        "extended-lambda", ("expt-extended-lambda",), why="NVRTC has every lambda on the device"
    ),
    _only_nvcc("compiler-options", ("Xcompiler",), takes="values", why=_HOST_ONLY, does=_RUNS),
    _only_nvcc("compiler-bindir", ("ccbin",), takes="value", why=_HOST_ONLY, does=_RUNS),
    _only_nvcc("allow-unsupported-compiler", why=_HOST_ONLY),
    _only_nvcc("debug", ("g",), why=_HOST_ONLY),
    _only_nvcc("profile", ("pg",), why=_HOST_ONLY),
    _only_nvcc("no-exceptions", ("noeh",), why=_HOST_ONLY),
    _only_nvcc("m64", why=_HOST_ONLY),
    _only_nvcc("default-stream", takes="value", why=_HOST_ONLY),
    _only_nvcc("forward-unknown-to-host-compiler", why=_HOST_ONLY, does=_RUNS),
    _only_nvcc("Wno-deprecated-gpu-targets", why="NVRTC compiles for one architecture"),
    _only_nvcc("Wno-deprecated-declarations", why=_HOST_ONLY),
    _only_nvcc("threads", ("t",), takes="number", why="there is one architecture to compile"),
    _neither("linker-options", ("Xlinker",), takes="values", why=_LINKING),
    _neither("archive-options", ("Xarchive",), takes="values", why=_LINKING),
    _neither("cudart", takes="value", why=_LINKING),
    _neither("cudadevrt", takes="value", why=_LINKING),
    _only_nvcc("optimize", ("O",), takes="value", why=_HOST_ONLY),
    _neither("lcudadevrt", why="cudadevrt is linked where it is needed"),
    _neither("library", ("l",), takes="value", why=_LINKING),
    _neither("library-path", ("L",), takes="value", why=_LINKING),
)

BY_NAME = {spec.name: spec for spec in SPECS}
BY_SPELLING = {name: spec for spec in SPECS for name in (spec.name, *spec.also)}
SHORTHANDS = {
    **dict.fromkeys(("device-c", "dc"), "-rdc=true"),
    **dict.fromkeys(("device-w", "dw"), "-rdc=false"),
    **dict.fromkeys(("resource-usage", "res-usage"), "-Xptxas=-v"),
}
# One-letter options whose value may follow without a blank: -DX=1, -O3.
JOINED = frozenset("DUIOL")

# Options with which a compiler makes something other than a kernel, writes files elsewhere, removes
# files, or runs a program that is not needed for a kernel; and why each is refused.
REFUSED = dict.fromkeys(
    (
        "preprocess", "E", "generate-dependencies", "M", "generate-nonsystem-dependencies", "MM",
        "MD", "MMD", "MF", "MT", "MP", "output-file", "o", "link", "lib", "run", "shared",
        "device-link", "dlink", "dryrun", "help", "h", "version", "V", "optix-ir",
        "generate-dependencies-with-compile", "generate-nonsystem-dependencies-with-compile",
        "dependency-output", "generate-dependency-targets", "dependency-target-name",
        "output-directory", "odir", "keep-dir", "clean-targets", "clean", "run-args",
        "archiver-binary", "arbin", "host-linker-script", "hls", "augment-host-linker-script",
        "aug-hls", "qpp-config",
    ),
    "makes the compiler produce something other than a kernel; rtcompile decides what is written, and where; "
    "leave the option out",
)  # fmt: skip
# NVRTC and nvcc compile a `__tile_global__` kernel to Tile IR. Only tileiras, a program in another wheel, compiles
# that to machine code, as a separate module; other code would lack the kernel.
REFUSED |= dict.fromkeys(
    ("enable-tile", "tile-only", "default-tile", "tile-preview", "tilebc", "tilecubin", "tilefatbin"),
    "is for Tile kernels, which rtcompile's result would lack: only tileiras makes machine code of them, as a "
    "separate module. `nvcc -std=c++20 -tile-only -cubin -arch=sm_100 FILE.cu` makes that module (`pip install "
    'nvidia-cuda-nvcc nvidia-cuda-tileiras`); RawModule(path="FILE.cubin") loads it',
)  # fmt: skip
# Options without a row that change only code and messages, so an untrusted record may contain them.
HARMLESS = frozenset(
    (
        "ftemplate-backtrace-limit", "ftemplate-depth", "no-host-device-initializer-list",
        "nohdinitlist", "no-host-device-move-forward", "nohdmoveforward", "verbose", "v",
        "split-compile-extended", "no-align-double", "keep-device-functions", "source-in-ptx",
        "src-in-ptx", "Wreorder", "Wdefault-stream-launch", "Wmissing-launch-bounds",
        "Wext-lambda-captures-this", "no-compress", "compress-mode", "relocatable-ptx", "reloc-ptx",
        "static-global-template-stub", "device-entity-has-hidden-visibility", "Xcudafe",
        "diag_suppress", "diag_warning", "diag_remark", "diag_error", "display_error_number",
    )
)  # fmt: skip

# The warning that Tile annotations are ignored; the code then lacks the kernel.
_TILE_IS_OFF = "20360"
_FIRST_WITH_TILE = (13, 3)

# --- What each compiler gets of the options -------------------------------------------------------


def dropped(flags: Iterable[tuple[str, str]], backend: str) -> tuple[str, ...]:
    """Return the flags that are not passed to `backend` ("nvrtc" or "nvcc"), and why."""
    notes = []
    for name, _ in flags:
        spec = BY_NAME[name]
        given = spec.nvrtc is not None if backend == "nvrtc" else spec.nvcc
        if not given and spec.why:
            notes.append(f"--{name} is not passed on: {spec.why}")
    return tuple(notes)


def for_nvrtc(
    options: Options, arch: Arch, target: str, nvrtc: Version, include_dirs: Sequence[str]
) -> tuple[str, ...]:
    """Return NVRTC's command line, with the whole search path; `arch` replaces the options' own."""
    line = [f"--gpu-architecture={arch if target == 'cubin' else arch.virtual}"]
    if nvrtc >= _FIRST_WITH_TILE:
        line.append(f"--diag-error={_TILE_IS_OFF}")
    for name, value in _flags_for(options, target):
        spec = BY_NAME[name]
        if spec.nvrtc is None:
            continue
        if nvrtc >= spec.nvrtc:
            line.append(_spelled(name, value))
        elif name == "Werror":
            if "all-warnings" in value.split(","):
                line.append("-Xcudafe=--promote_warnings")
        else:
            raise InvalidRequest(
                f"--{name} needs NVRTC {spec.nvrtc[0]}.{spec.nvrtc[1]} or newer; "
                f"this is {nvrtc[0]}.{nvrtc[1]}; upgrade it or leave the option out"
            )
    line += [f"-{kind}{text}" for kind, text in options.macros]
    line += [f"-I{path}" for path in include_dirs]
    line += [f"--pre-include={path}" for path in options.pre_includes]
    line += [f"--ptxas-options={option}" for option in options.ptxas]
    line += options.unknown
    return tuple(line)


def for_nvcc(
    options: Options,
    arch: Arch,
    target: str,
    nvcc: Version,
    include_dirs: Sequence[str],
    *,
    beside: str = "",
) -> tuple[str, ...]:
    """Return nvcc's command line, without files and target; ``#include "…"`` searches `beside` first."""
    code = {"ptx": arch.virtual, "ltoir": f"lto_{str(arch)[3:]}"}.get(target, str(arch))
    line = [f"--generate-code=arch={arch.virtual},code={code}"]
    if nvcc >= _FIRST_WITH_TILE:
        line.append(f"--diag-error={_TILE_IS_OFF}")
    for name, value in _flags_for(options, target):
        if not BY_NAME[name].nvcc or name == "dlink-time-opt":  # implied by code=lto_90
            continue
        spelled = _spelled(name, value)
        line.append(nvcc_path(spelled) if name == "compiler-bindir" else _plain(spelled))
    line += [f"-{kind}{text.translate(_ESCAPES)}" for kind, text in options.macros]
    if beside:
        line.append(f"--compiler-options=-iquote,{_quoted(beside)}")
    line += [f"-I{_path(path)}" for path in include_dirs]
    line += [f"--compiler-options=-idirafter,{_quoted(path)}" for path in options.last_dirs]
    line += [f"--pre-include={_path(path)}" for path in options.pre_includes]
    line += [_plain(f"--ptxas-options={option}") for option in options.ptxas]
    line += map(_plain, options.unknown)
    return tuple(line)


def for_nvjitlink(
    options: Options, arch: Arch, nvjitlink: Version, *, lto: bool, target: str = "cubin"
) -> tuple[str, ...]:
    """Return nvJitLink's options: those that affect linking; `lto` says whether inputs contain LTO-IR."""
    line = [f"-arch={arch}", *["-lto"] * lto, *["-ptx"] * (target == "ptx")]
    fast = {} if options.get("use_fast_math") is None else _FAST_MATH
    for name, value in {**fast, **dict(options.flags)}.items():
        spec = BY_NAME[name]
        if spec.linker and nvjitlink >= spec.linker_since:
            value = {"true": "1", "false": "0"}.get(value, value)
            line.append(f"{spec.linker}={value}" if value else spec.linker)
    line += [f"-Xptxas={option}" for option in options.ptxas]
    return tuple(line)


_FAST_MATH = {"ftz": "true", "prec-div": "false", "prec-sqrt": "false", "fmad": "true"}


def _flags_for(options: Options, target: str) -> Iterator[tuple[str, str]]:
    # Only the target decides whether -dlto is passed, since NVRTC makes no cubin with it.
    for name, value in options.flags:
        if target == "ltoir" or name not in ("dlink-time-opt", "gen-opt-lto"):
            yield name, value
    if target == "ltoir" and not options.lto:
        yield "dlink-time-opt", ""


def _spelled(name: str, value: str) -> str:
    dashes = "-" if name == "Werror" else "--"  # NVRTC 13.3 rejects --Werror, nvcc the long name
    return f"{dashes}{name}={value}" if value else dashes + name


# --- nvcc's shell ---------------------------------------------------------------------------------

# Undocumented, measured with 13.0: nvcc puts definitions and directories between double quotes, and
# leaves options for ptxas, the front end and the host compiler unquoted.
_PLAIN = re.compile(r"[\w.,:=+/@%^-]*")


def _plain(word: str) -> str:
    """Return a word that nvcc may pass to a shell unquoted: without ``;``, ``$(``, blanks and the like."""
    if not _PLAIN.fullmatch(word):
        raise InvalidRequest(
            f"nvcc cannot take the option {word!r}: it passes it to a shell unquoted, and the "
            "shell would interpret some of it. Use only letters, digits and . , : = + / @ % ^ - _"
        )
    return word


# nvcc splits definitions at commas and passes them to a shell in quotes.
_ESCAPES = str.maketrans({",": r"\,", "$": r"\\$", "`": r"\\`", "\\": "\\" * 4})


def _path(path: str) -> str:
    """Return a path for nvcc, which splits at commas unless they are in quotes."""
    return _quoted(path) if "," in path else nvcc_path(path)


def _quoted(path: str) -> str:
    return f'"{nvcc_path(path)}"'


def nvcc_path(path: str) -> str:
    """Return a path that nvcc may put between double quotes for its shell."""
    if any(character in path for character in '$`\\"\n'):
        raise InvalidRequest(
            f"nvcc cannot take the path {path!r}: its shell would expand it; use a path without "
            '$ ` \\ " and line breaks'
        )
    return path
