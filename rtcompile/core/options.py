"""Every spelling of every compiler option becomes one normal form, and that the flags of any compiler.

The normal form holds each option once, with the value that wins. What a compiler does with an
option is a row of `_SPECS`; a new option is a new row. Long names with ``=`` are what is emitted:
the one spelling that every NVRTC and every nvcc takes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from rtcompile.core.arch import Arch, runs_on
from rtcompile.errors import InvalidRequest, UnsupportedArch

__all__ = ["ArchOption", "Options", "parse"]

Version = tuple[int, int]
_T = TypeVar("_T")


class _Spec(NamedTuple):
    """One option.

    `name` is its long name, `also` its other spellings without dashes. `takes` is "nothing",
    "boolean", "number", "value" or "values" (comma-separated, gathered over all occurrences);
    `implied` is the value when none follows. `nvrtc` is the first release that takes it, None
    where none does. `why` explains a drop; empty where there is nothing to say, since the other
    compiler behaves so anyway.
    """

    name: str
    also: tuple[str, ...] = ()
    takes: str = "nothing"
    nvrtc: Version | None = (12, 0)
    nvcc: bool = True
    why: str = ""
    implied: str = ""


_HOST_ONLY = "it concerns host code, which NVRTC does not compile"
_LINKING = "it concerns the host's linker"
_OURS = "rtcompile makes and checks precompiled headers itself"
_TARGET = "the target= argument says what is built"
_LIBRARY_ONLY = "nvcc has no such option"

_SPECS = (
    _Spec("device-debug", ("G",)),
    _Spec("generate-line-info", ("lineinfo",)),
    _Spec("use_fast_math"),
    _Spec("ftz", takes="boolean"),
    _Spec("prec-div", takes="boolean"),
    _Spec("prec-sqrt", takes="boolean"),
    _Spec("fmad", takes="boolean"),
    _Spec("std", takes="value"),
    _Spec("maxrregcount", takes="number"),
    _Spec("relocatable-device-code", ("rdc",), takes="boolean"),
    _Spec("extensible-whole-program", ("ewp",)),
    _Spec("dlink-time-opt", ("dlto", "lto")),
    _Spec("gen-opt-lto"),
    _Spec("dopt", takes="value"),
    _Spec("extra-device-vectorization"),
    _Spec("disable-warnings", ("w",)),
    _Spec("Werror", ("warning-as-error",), takes="values", nvrtc=(13, 3), implied="all-warnings"),
    _Spec("diag-suppress", takes="values"),
    _Spec("diag-error", takes="values"),
    _Spec("diag-warn", takes="values"),
    _Spec("display-error-number", ("err-no",)),
    _Spec("no-display-error-number", ("no-err-no",)),
    _Spec("brief-diagnostics", ("brief-diag",), takes="boolean"),
    _Spec("optimization-info", ("opt-info",), takes="values"),
    _Spec("restrict"),
    _Spec("fdevice-syntax-only"),
    _Spec("time", takes="value"),
    _Spec("fdevice-time-trace", takes="value", nvrtc=(12, 6)),
    _Spec("split-compile", takes="number", nvrtc=(12, 6)),
    _Spec("jump-table-density", ("jtd",), takes="number"),
    _Spec("device-stack-protector", takes="boolean", nvrtc=(12, 6)),
    _Spec("Ofast-compile", ("Ofc",), takes="value", nvrtc=(12, 6)),
    _Spec("frandom-seed", takes="value", nvrtc=(12, 9)),
    # NVRTC's alone. nvcc compiles for the host too: it has 128-bit integers, and functions
    # without annotations are the host's.
    _Spec("device-as-default-execution-space", ("default-device",), nvcc=False),
    _Spec("device-int128", nvcc=False),
    _Spec("device-float128", nvrtc=(12, 6), nvcc=False, why=_LIBRARY_ONLY),
    _Spec("minimal", nvcc=False, why=_LIBRARY_ONLY),
    _Spec("no-source-include", nvcc=False, why=_LIBRARY_ONLY),
    _Spec("modify-stack-limit", takes="boolean", nvcc=False, why=_LIBRARY_ONLY),
    _Spec("builtin-move-forward", takes="boolean", nvcc=False, why=_LIBRARY_ONLY),
    _Spec("builtin-initializer-list", takes="boolean", nvcc=False, why=_LIBRARY_ONLY),
    _Spec("no-cache", nvrtc=(12, 9), nvcc=False, why=_LIBRARY_ONLY),
    # Ours to decide.
    _Spec("pch", nvrtc=None, nvcc=False, why=_OURS),
    _Spec("create-pch", takes="value", nvrtc=None, nvcc=False, why=_OURS),
    _Spec("use-pch", takes="value", nvrtc=None, nvcc=False, why=_OURS),
    _Spec("pch-dir", takes="value", nvrtc=None, nvcc=False, why=_OURS),
    _Spec("pch-messages", takes="boolean", nvrtc=None, nvcc=False, why=_OURS, implied="true"),
    _Spec("pch-verbose", takes="boolean", nvrtc=None, nvcc=False, why=_OURS, implied="true"),
    _Spec(
        "instantiate-templates-in-pch",
        takes="boolean",
        nvrtc=None,
        nvcc=False,
        why=_OURS,
        implied="true",
    ),
    _Spec("cubin", nvrtc=None, nvcc=False, why=_TARGET),
    _Spec("ptx", nvrtc=None, nvcc=False, why=_TARGET),
    _Spec("fatbin", nvrtc=None, nvcc=False, why=_TARGET),
    _Spec("ltoir", nvrtc=None, nvcc=False, why=_TARGET),
    _Spec("compile", ("c",), nvrtc=None, nvcc=False, why=_TARGET),
    # nvcc's alone.
    _Spec("expt-relaxed-constexpr", nvrtc=None, why="NVRTC has every function on the device"),
    _Spec(
        "extended-lambda",
        ("expt-extended-lambda",),
        nvrtc=None,
        why="NVRTC has every lambda on the device",
    ),
    _Spec("compiler-options", ("Xcompiler",), takes="values", nvrtc=None, why=_HOST_ONLY),
    _Spec("compiler-bindir", ("ccbin",), takes="value", nvrtc=None, why=_HOST_ONLY),
    _Spec("allow-unsupported-compiler", nvrtc=None, why=_HOST_ONLY),
    _Spec("debug", ("g",), nvrtc=None, why=_HOST_ONLY),
    _Spec("profile", ("pg",), nvrtc=None, why=_HOST_ONLY),
    _Spec("no-exceptions", ("noeh",), nvrtc=None, why=_HOST_ONLY),
    _Spec("m64", nvrtc=None, why=_HOST_ONLY),
    _Spec("default-stream", takes="value", nvrtc=None, why=_HOST_ONLY),
    _Spec("forward-unknown-to-host-compiler", nvrtc=None, why=_HOST_ONLY),
    _Spec("Wno-deprecated-gpu-targets", nvrtc=None, why="NVRTC compiles for one architecture"),
    _Spec("Wno-deprecated-declarations", nvrtc=None, why=_HOST_ONLY),
    _Spec(
        "threads", ("t",), takes="number", nvrtc=None, why="there is one architecture to compile"
    ),
    _Spec("linker-options", ("Xlinker",), takes="values", nvrtc=None, nvcc=False, why=_LINKING),
    _Spec("archive-options", ("Xarchive",), takes="values", nvrtc=None, nvcc=False, why=_LINKING),
    _Spec("cudart", takes="value", nvrtc=None, nvcc=False, why=_LINKING),
    _Spec("cudadevrt", takes="value", nvrtc=None, nvcc=False, why=_LINKING),
    _Spec("optimize", ("O",), takes="value", nvrtc=None, why=_HOST_ONLY),
    _Spec("lcudadevrt", nvrtc=None, nvcc=False, why="cudadevrt is linked where it is needed"),
    _Spec("library", ("l",), takes="value", nvrtc=None, nvcc=False, why=_LINKING),
    _Spec("library-path", ("L",), takes="value", nvrtc=None, nvcc=False, why=_LINKING),
)

_BY_NAME = {spec.name: spec for spec in _SPECS}
_BY_SPELLING = {name: spec for spec in _SPECS for name in (spec.name, *spec.also)}
_SHORTHANDS = {
    "device-c": {"relocatable-device-code": "true"},
    "dc": {"relocatable-device-code": "true"},
    "device-w": {"relocatable-device-code": "false"},
    "dw": {"relocatable-device-code": "false"},
}
# Letters whose value may be joined to them: -DX=1, -O3.
_JOINED = frozenset("DUIOL")

_REFUSED = frozenset(
    (
        "preprocess", "E", "generate-dependencies", "M", "generate-nonsystem-dependencies", "MM",
        "MD", "MMD", "MF", "MT", "MP", "output-file", "o", "link", "lib", "run", "shared",
        "device-link", "dlink", "dryrun", "help", "h", "version", "V", "optix-ir",
    )
)  # fmt: skip

# The values of -std, and the first release of NVRTC and nvcc that takes each.
_STANDARDS: dict[str, Version] = {
    "c++03": (12, 0),
    "c++11": (12, 0),
    "c++14": (12, 0),
    "c++17": (12, 0),
    "c++20": (12, 0),
    "c++23": (13, 3),
}

# Their values name files for the developer to read; they change no code.
_SIDE_FILES = frozenset({"time", "fdevice-time-trace"})
_LTO_FLAGS = frozenset({"dlink-time-opt", "gen-opt-lto"})
_DROPPED_EVERYWHERE = frozenset(s.name for s in _SPECS if s.nvrtc is None and not s.nvcc)


class ArchOption(NamedTuple):
    """An architecture that the options ask for; `virtual` asks for its PTX."""

    arch: Arch
    virtual: bool = False

    def __str__(self) -> str:
        return self.arch.virtual if self.virtual else str(self.arch)


class Options(NamedTuple):
    """Compiler options in normal form.

    Attributes
    ----------
    arch : tuple of ArchOption
        What was asked for, in order; several where ``-gencode`` or a list was given.
    macros : tuple of (str, str)
        ``("D", "NAME=VALUE")`` or ``("U", "NAME")``, one for each name: the last given.
    include_dirs, pre_includes : tuple of str
        ``-I`` (then ``-isystem``) directories and ``-include`` headers, in order.
    flags : tuple of (str, str)
        Long name and value ("" where it takes none), sorted by name.
    ptxas : tuple of str
        Options for ptxas, one each, in order.
    unknown : tuple of str
        What no row of the table knows, in order; passed through, the compiler decides.
    notes : tuple of str
        What was changed while reading, and why.
    """

    arch: tuple[ArchOption, ...] = ()
    macros: tuple[tuple[str, str], ...] = ()
    include_dirs: tuple[str, ...] = ()
    pre_includes: tuple[str, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    ptxas: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def get(self, name: str) -> str | None:
        """Return the value of the flag `name` ("" where it takes none), None if not given."""
        for given, value in self.flags:
            if given == name:
                return value
        return None

    @property
    def std(self) -> str | None:
        """The language standard, ``"c++17"``."""
        return self.get("std")

    @property
    def rdc(self) -> bool:
        """Relocatable device code: the result must be linked."""
        return self.get("relocatable-device-code") == "true"

    @property
    def lto(self) -> bool:
        """Link-time optimisation: the result is LTO-IR and must be linked."""
        return self.get("dlink-time-opt") is not None

    @property
    def debug(self) -> bool:
        """Device debug information: source paths reach the binary."""
        return self.get("device-debug") is not None

    @property
    def lineinfo(self) -> bool:
        """Line information: source paths reach the binary."""
        return self.get("generate-line-info") is not None

    def arch_for(self, capability: tuple[int, int] | None) -> ArchOption | None:
        """Return the asked-for architecture to build: the best that the device runs.

        Parameters
        ----------
        capability : (int, int) or None
            The device; None when cross-compiling, where the last one given is taken.

        Returns
        -------
        ArchOption or None
            None if the options ask for none.

        Raises
        ------
        UnsupportedArch
            The device runs none of them.
        """
        if not self.arch:
            return None
        if capability is None:
            return self.arch[-1]
        runnable = [
            option
            for option in self.arch
            if runs_on(option.arch, "ptx" if option.virtual else "cubin", capability)
        ]
        if not runnable:
            asked = ", ".join(map(str, self.arch))
            raise UnsupportedArch(
                f"the options ask for {asked}, which a device of compute capability "
                f"{capability[0]}.{capability[1]} cannot run; leave the architecture out and it "
                "is chosen for the device"
            )
        return max(runnable, key=lambda option: (not option.virtual, option.arch))

    def with_defaults(
        self,
        std: str = "c++17",
        ftz: bool = True,
        default_device: bool = True,
        debug: bool = False,
    ) -> Options:
        """Add CuPy's implicit options, each only where the user gave none."""
        flags = dict(self.flags)
        flags.setdefault("std", std)
        if ftz and "use_fast_math" not in flags:  # which implies it
            flags.setdefault("ftz", "true")
        if default_device:
            flags["device-as-default-execution-space"] = ""
        if debug:
            flags["device-debug"] = flags["generate-line-info"] = ""
        return self._replace(flags=tuple(sorted(flags.items())))

    def adding(self, *options: str) -> Options:
        """Return these options with `options` given after them, which therefore win."""
        more = parse(options)
        macros = {_macro_name(text): (kind, text) for kind, text in self.macros + more.macros}
        return Options(
            more.arch or self.arch,
            tuple(macros.values()),
            _unique(self.include_dirs + more.include_dirs),
            _unique(self.pre_includes + more.pre_includes),
            tuple(sorted({**dict(self.flags), **dict(more.flags)}.items())),
            _unique(self.ptxas + more.ptxas),
            self.unknown + more.unknown,
            _unique(self.notes + more.notes),
        )

    def to_nvrtc(
        self, arch: Arch, target: str, nvrtc: Version, include_dirs: Sequence[str]
    ) -> tuple[str, ...]:
        """Return NVRTC's command line.

        Parameters
        ----------
        arch : Arch
            What to compile for; the options' own `arch` is the caller's to heed.
        target : {"cubin", "ptx", "ltoir"}
            What to make; ``-dlto`` is emitted for LTO-IR and only then.
        nvrtc : (int, int)
            Its version.
        include_dirs : sequence of str
            The whole search path in order, the options' own directories included.

        Raises
        ------
        InvalidRequest
            An option that this release does not take yet; the message names the one that does.
        """
        line = [f"--gpu-architecture={arch if target == 'cubin' else arch.virtual}"]
        for name, value in self._flags_for(target):
            spec = _BY_NAME[name]
            if spec.nvrtc is None:
                continue
            if name == "std":
                _check_standard(value, "NVRTC", nvrtc)
            if nvrtc >= spec.nvrtc:
                line.append(_spelled(name, value))
            elif name == "Werror":
                if "all-warnings" in value.split(","):
                    line.append("-Xcudafe=--promote_warnings")
            else:
                raise InvalidRequest(
                    f"--{name} needs NVRTC {spec.nvrtc[0]}.{spec.nvrtc[1]} or newer; "
                    f"this is {nvrtc[0]}.{nvrtc[1]}"
                )
        line += [f"-{kind}{text}" for kind, text in self.macros]
        line += [f"-I{path}" for path in include_dirs]
        line += [f"--pre-include={path}" for path in self.pre_includes]
        line += [f"--ptxas-options={option}" for option in self.ptxas]
        line += self.unknown
        return tuple(line)

    def to_nvcc(
        self, arch: Arch, target: str, nvcc: Version, include_dirs: Sequence[str]
    ) -> tuple[str, ...]:
        """Return nvcc's command line, but for input, output and what to make.

        Parameters and errors as for `to_nvrtc`, with nvcc's version.
        """
        code = {"ptx": arch.virtual, "ltoir": f"lto_{str(arch)[3:]}"}.get(target, str(arch))
        line = [f"--generate-code=arch={arch.virtual},code={code}"]
        for name, value in self._flags_for(target):
            if not _BY_NAME[name].nvcc or name == "dlink-time-opt":  # said by code=lto_90
                continue
            if name == "std":
                _check_standard(value, "nvcc", nvcc)
            line.append(_spelled(name, value))
        line += [f"-{kind}{_nvcc_macro(text)}" for kind, text in self.macros]
        line += [f"-I{_nvcc_path(path)}" for path in include_dirs]
        line += [f"--pre-include={_nvcc_path(path)}" for path in self.pre_includes]
        line += [f"--ptxas-options={option}" for option in self.ptxas]
        line += self.unknown
        return tuple(line)

    def to_nvjitlink(self, arch: Arch, nvjitlink: Version) -> tuple[str, ...]:
        """Return nvJitLink's options: those that still mean something when linking."""
        line = [f"-arch={arch}"]
        if self.lto:
            line.append("-lto")
        if self.get("use_fast_math") is not None:
            values = {"ftz": "true", "prec-div": "false", "prec-sqrt": "false", "fmad": "true"}
        else:
            values = {}
        values.update((name, value) for name, value in self.flags if name in _JITLINK_BOOLEANS)
        line += [
            f"-{_JITLINK_BOOLEANS[name]}={int(value == 'true')}" for name, value in values.items()
        ]
        for name, value in self.flags:
            if name not in _JITLINK_FLAGS:
                continue
            spelling, since = _JITLINK_FLAGS[name]
            if nvjitlink >= since:  # splitting and tables only tune: an older linker does without
                line.append(f"{spelling}={value}" if value else spelling)
        line += [f"-Xptxas={option}" for option in self.ptxas]
        return tuple(line)

    def dropped(self, backend: str) -> tuple[str, ...]:
        """Say which options `backend` ("nvrtc" or "nvcc") is not given, and why."""
        notes = []
        for name, _ in self.flags:
            spec = _BY_NAME[name]
            given = spec.nvrtc is not None if backend == "nvrtc" else spec.nvcc
            if not given and spec.why:
                notes.append(f"--{name} is not passed on: {spec.why}")
        return tuple(notes)

    def key_fields(self) -> tuple[tuple[str, str], ...]:
        """Return what identifies these options: no directory, no order where it means nothing."""
        fields = [
            (name, "" if name in _SIDE_FILES else value)
            for name, value in self.flags
            if name not in _DROPPED_EVERYWHERE
        ]
        fields += [(kind, text) for kind, text in sorted(self.macros)]
        fields += [("pre-include", posixpath.basename(path)) for path in self.pre_includes]
        fields += [("ptxas", option) for option in self.ptxas]
        fields += [("unknown", option) for option in self.unknown]
        return tuple(fields)

    def _flags_for(self, target: str) -> Iterator[tuple[str, str]]:
        # The target decides about LTO: with -dlto NVRTC would give no cubin at all.
        for name, value in self.flags:
            if target == "ltoir" or name not in _LTO_FLAGS:
                yield name, value
        if target == "ltoir" and not self.lto:
            yield "dlink-time-opt", ""


# nvJitLink's names for what it shares with the compilers.
_JITLINK_BOOLEANS = {"ftz": "ftz", "prec-div": "prec-div", "prec-sqrt": "prec-sqrt", "fmad": "fma"}
_JITLINK_FLAGS: dict[str, tuple[str, Version]] = {
    "device-debug": ("-g", (12, 0)),
    "generate-line-info": ("-lineinfo", (12, 0)),
    "maxrregcount": ("-maxrregcount", (12, 0)),
    "split-compile": ("-split-compile", (12, 4)),
    "jump-table-density": ("-jump-table-density", (12, 4)),
}


def parse(options: Iterable[str]) -> Options:
    """Read compiler options in any spelling of NVRTC's, nvcc's or CuPy's users.

    Parameters
    ----------
    options : iterable of str
        One or several words each. An option and its value may be one element (``'-I /x'``) or
        two. White space splits an element where a next option begins: ``'-DX=1 -DY=2'`` is two
        defines, ``'-DFOO="a b"'`` is one and keeps its quotes, ``'-I /a b'`` is one directory.

    Raises
    ------
    InvalidRequest
        A value is missing or impossible, or something other than a kernel is asked for.
    """
    reader = _Reader([word for element in options for word in _words(element)])
    while reader.words:
        reader.read(reader.words.pop())
    return reader.options()


class _Reader:
    """What has been read so far; `words` holds the rest, the next one last."""

    def __init__(self, words: list[str]) -> None:
        self.words = words[::-1]
        self.flags: dict[str, str] = {}
        self.macros: dict[str, tuple[str, str]] = {}
        self.include_dirs: list[str] = []
        self.system_dirs: list[str] = []
        self.pre_includes: list[str] = []
        self.ptxas: list[str] = []
        self.unknown: list[str] = []
        self.notes: list[str] = []
        self.asked: list[ArchOption] = []
        self.codes: list[ArchOption] = []
        self.generated: list[ArchOption] = []

    def read(self, word: str) -> None:
        name, value = _name_and_value(word)
        reading = _READINGS.get(name)
        if reading is not None:
            reading(self, self.next_after(word) if value is None else value)
        elif name in _SHORTHANDS:
            self.flags.update(_SHORTHANDS[name])
        elif name in _BY_SPELLING:
            self.flag(_BY_SPELLING[name], word, value)
        elif name in ("resource-usage", "res-usage"):
            self.ptxas_options("-v")
        elif name in _REFUSED:
            raise InvalidRequest(
                f"{word!r} asks the compiler for something other than a kernel; "
                "what is written, and where, is rtcompile's to decide"
            )
        else:
            self.unknown.append(word)

    def next_after(self, word: str) -> str:
        if not self.words:
            raise InvalidRequest(f"{word!r} needs a value, and no option follows it")
        return self.words.pop()

    def flag(self, spec: _Spec, word: str, value: str | None) -> None:
        if spec.takes == "nothing":
            if value is not None:
                raise InvalidRequest(f"{word!r}: --{spec.name} takes no value")
            self.flags[spec.name] = ""
            return
        if value is None:
            implied = spec.implied and (not self.words or self.words[-1].startswith("-"))
            value = spec.implied if implied else self.next_after(word)
        if spec.takes == "boolean" and value not in ("true", "false"):
            raise InvalidRequest(f"{word!r}: --{spec.name} is true or false, not {value!r}")
        if spec.takes == "number" and not value.isdecimal():
            raise InvalidRequest(f"{word!r}: --{spec.name} takes a number, not {value!r}")
        if spec.takes == "values" and spec.name in self.flags:
            value = f"{self.flags[spec.name]},{value}"
        if spec.takes == "values":
            value = ",".join(dict.fromkeys(value.split(",")))
        if spec.name == "std":
            value = self.standard(value)
        self.flags[spec.name] = value

    def standard(self, value: str) -> str:
        name = value.lower()
        if name.startswith("gnu++"):
            name = "c" + name.removeprefix("gnu")
            self.notes.append(f"-std={value} became {name}: no device compiler has GNU dialects")
        if name not in _STANDARDS:
            raise InvalidRequest(f"-std={value}: expected one of {', '.join(_STANDARDS)}")
        return name

    def define(self, text: str) -> None:
        self.macro("D", text)

    def undefine(self, text: str) -> None:
        self.macro("U", text)

    def macro(self, kind: str, text: str) -> None:
        if text[:1] in _QUOTES:  # -D"X=a b": no macro's name begins with a quote
            text = _unquoted(text)
        name = _macro_name(text)
        if not name:
            raise InvalidRequest(f"'-{kind}{text}' names no macro")
        self.macros[name] = (kind, text)

    def include_dir(self, path: str) -> None:
        self.include_dirs.append(_unquoted(path))

    def system_dir(self, path: str) -> None:
        self.system_dirs.append(_unquoted(path))

    def pre_include(self, path: str) -> None:
        self.pre_includes.append(_unquoted(path))

    def ptxas_options(self, value: str) -> None:
        # nvcc splits at commas; NVRTC does not, and ptxas would be given "-v,-O3" as one option.
        for option in value.split(","):
            if option and not (option.startswith("-") and option in self.ptxas):
                self.ptxas.append(option)

    def architecture(self, value: str) -> None:
        if value == "native":
            self.asked = []
        elif value in ("all", "all-major"):
            raise InvalidRequest(f"-arch={value}: a build is for one architecture")
        else:
            self.asked = self.arch_list(value)

    def code(self, value: str) -> None:
        self.codes = self.arch_list(value)

    def generate_code(self, value: str) -> None:
        # arch= only says which PTX the code is made by way of.
        virtual, comma, code = value.partition(",code=")
        if not comma or not virtual.startswith("arch="):
            raise InvalidRequest(f"-gencode={value}: expected arch=compute_80,code=sm_80")
        self.generated += self.arch_list(code)

    def arch_list(self, value: str) -> list[ArchOption]:
        asked = []
        for name in value.translate(_WITHOUT_BRACKETS).split(","):
            try:
                arch = Arch.parse(name)
            except ValueError as error:
                raise InvalidRequest(f"-arch={value}: {error}") from None
            if name.startswith("lto_"):
                self.flags["dlink-time-opt"] = ""
            asked.append(ArchOption(arch, virtual=name.startswith(("compute_", "lto_"))))
        return asked

    def options(self) -> Options:
        return Options(
            _unique([*(self.codes or self.asked), *self.generated]),
            tuple(self.macros.values()),
            _unique([*self.include_dirs, *self.system_dirs]),
            _unique(self.pre_includes),
            tuple(sorted(self.flags.items())),
            tuple(self.ptxas),
            tuple(self.unknown),
            _unique(self.notes),
        )


# Options that are more than a flag with a value.
_READINGS: dict[str, Callable[[_Reader, str], None]] = {
    "D": _Reader.define,
    "define-macro": _Reader.define,
    "U": _Reader.undefine,
    "undefine-macro": _Reader.undefine,
    "I": _Reader.include_dir,
    "include-path": _Reader.include_dir,
    "isystem": _Reader.system_dir,
    "system-include": _Reader.system_dir,
    "include": _Reader.pre_include,
    "pre-include": _Reader.pre_include,
    "Xptxas": _Reader.ptxas_options,
    "ptxas-options": _Reader.ptxas_options,
    "arch": _Reader.architecture,
    "gpu-architecture": _Reader.architecture,
    "code": _Reader.code,
    "gpu-code": _Reader.code,
    "gencode": _Reader.generate_code,
    "generate-code": _Reader.generate_code,
}

# Their values may hold white space: it belongs to them until a next option begins.
_FREE_TEXT = frozenset({"D", "define-macro", "I", "include-path", "isystem", "system-include",
                        "include", "pre-include"})  # fmt: skip

_QUOTES = ("'", '"')
_PIECE = r"""(?:[^\s"']|"[^"]*"?|'[^']*'?)+"""  # few options hold blanks: compiled for the first
_WITHOUT_BRACKETS = str.maketrans("", "", "[]\"' ")


def _name_and_value(word: str) -> tuple[str, str | None]:
    """Split ``--std=c++17``, ``-DX=1`` and ``-O3``; no value where the next word may hold it."""
    if word[:1] != "-":
        return "", None
    letter = word[1:2]
    if letter in _JOINED and len(word) > 2 and word.partition("=")[0][1:] not in _BY_SPELLING:
        return letter, word[2:].removeprefix("=").lstrip()
    name, equals, value = word.partition("=")
    name = name[2:] if name[1:2] == "-" else name[1:]
    return name, value if equals else None


def _words(element: str) -> list[str]:
    words = element.split()
    return words if len(words) < 2 else _split(element)


def _split(element: str) -> list[str]:
    """Split where a next option begins; white space elsewhere belongs to a define or a path."""
    words: list[str] = []
    free_text = needs_value = False
    end = 0
    for piece in re.finditer(_PIECE, element):
        text = piece[0]
        if needs_value:
            words.append(text)
            needs_value = False
        elif free_text and not _is_option(text):
            words[-1] += element[end : piece.start()] + text
        else:
            words.append(text)
            name, value = _name_and_value(text)
            free_text = name in _FREE_TEXT
            needs_value = value is None and name in _READINGS
        end = piece.end()
    return words


def _is_option(text: str) -> bool:
    name, _ = _name_and_value(text)
    return bool(name) and (
        text.startswith("--") or name in _READINGS or name in _BY_SPELLING or name in _SHORTHANDS
    )


def _spelled(name: str, value: str) -> str:
    dashes = "-" if name == "Werror" else "--"  # NVRTC 13.3 refuses --Werror, nvcc the long name
    return f"{dashes}{name}={value}" if value else dashes + name


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] in _QUOTES and text[-1] == text[0] else text


def _macro_name(text: str) -> str:
    return text.partition("=")[0].partition("(")[0].strip()


def _unique(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))


def _check_standard(name: str, compiler: str, version: Version) -> None:
    if version < _STANDARDS[name]:
        known = ", ".join(std for std, since in _STANDARDS.items() if version >= since)
        raise InvalidRequest(f"-std={name}: {compiler} {version[0]}.{version[1]} takes {known}")


def _nvcc_macro(text: str) -> str:
    """Escape a definition for nvcc, which splits it at commas and hands it to a shell.

    Undocumented; measured with 13.0, where ``-DX=$(id)`` runs ``id``.
    """
    return text.translate(_NVCC_ESCAPES)


_NVCC_ESCAPES = str.maketrans({",": r"\,", "$": r"\\$", "`": r"\\`", "\\": "\\" * 4})


def _nvcc_path(path: str) -> str:
    """Quote a path for nvcc: it splits at commas, and the shell behind it expands the rest."""
    if any(character in path for character in '$`\\"'):
        raise InvalidRequest(f"nvcc cannot take the directory {path!r}: its shell would expand it")
    return f'"{path}"' if "," in path else path
