"""Parses compiler options of any spelling into a normal form: each option once, the last wins.

`option_table` says which values an option takes, and turns the normal form into the flags of each compiler.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from rtcompile.errors import InvalidRequest, UnsupportedArch, shown
from rtcompile.named import NamedTuple, computed_once
from rtcompile.request.arch import Choice, runs_on
from rtcompile.request.option_table import (
    BY_NAME,
    BY_SPELLING,
    HARMLESS,
    JOINED,
    REFUSED,
    SHORTHANDS,
    Spec,
)
from rtcompile.request.values import Arch

if TYPE_CHECKING:
    from rtcompile.request.request import CompileRequest

# --- Options as users write them ------------------------------------------------------------------

MOST_WORDS = 20_000  # parsing more would take longer than `timeout=` allows

QUOTES = ("'", '"')
# Compiled at first use, since few options contain blanks.
_PIECE = r"""(?:[^\s"']|"[^"]*"?|'[^']*'?)+"""


def name_and_value(word: str) -> tuple[str, str | None]:
    """Split ``--std=c++17``, ``-DX=1`` and ``-O3`` into name and value; None if the value may be the next word."""
    if word[:1] != "-":
        return "", None
    letter = word[1:2]
    if letter in JOINED and word.partition("=")[0][1:] not in BY_SPELLING:
        return letter, word[2:].removeprefix("=").lstrip()
    name, equals, value = word.partition("=")
    name = name[2:] if name[1:2] == "-" else name[1:]
    return name, value.lstrip() if equals else None


def all_words(options: Iterable[str]) -> Iterator[str]:
    """Yield the words of options; an element after an option that needs a value is that value."""
    waits, left = False, MOST_WORDS
    for element in options:
        if waits and element.strip():
            yield element.strip()
            waits = False
            continue
        found = element.split()
        if 1 < len(found) <= 2 * MOST_WORDS:  # an option and its value
            found = _split(element)
        left -= len(found)
        if left < 0:
            raise InvalidRequest(
                f"options contains more than {MOST_WORDS:,} words, which would take too long to parse; "
                "write macros as #define lines in a header that the source includes, or that headers= passes"
            )
        for word in found:
            waits = not waits and _waits_for_value(word)
            yield word


def _waits_for_value(word: str) -> bool:
    name, value = name_and_value(word)
    spec = BY_SPELLING.get(name) if value is None else None
    return spec is not None and spec.takes != "nothing" and not spec.implied


def _split(element: str) -> list[str]:
    """Split only where a new option begins: ``'-DFOO="a b"'`` and ``'-I /a b'`` keep their blanks."""
    words: list[str] = []
    free_text = needs_value = False
    end = 0
    for piece in re.finditer(_PIECE, element):
        text = piece[0]
        name, _ = name_and_value(text)
        is_known = name in BY_SPELLING or name in SHORTHANDS
        if needs_value:
            words.append(text)
            needs_value = False
        elif free_text and not (is_known or (name and text.startswith("--"))):
            words[-1] += element[end : piece.start()] + text
        else:
            words.append(text)
            free_text = name in BY_SPELLING and BY_SPELLING[name].takes in ("path", "macro")
            needs_value = _waits_for_value(text)
        end = piece.end()
    return words


def unquoted(text: str) -> str:
    """Return the text without the quotes around it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] in QUOTES and text[-1] == text[0] else text


# --- Options after ``-Xcompiler`` and ``-Xptxas``: which of them the cache must know --------------

# Options of the host compiler that nvcc has too. nvcc uses the host compiler as its preprocessor.
_OWN = ("-isystem", "-idirafter", "-include", "-I", "-D", "-U")
_WORD = re.compile(r"""(?:[^\s,"']|"[^"]*"?|'[^']*'?)+""")
# Options of the compilers that name an options file, also as the value of another option.
_OPTIONS_FILE = re.compile(r"(?:^|[=,])(?:@|--?(?:options-file|optf)(?:[=\s]|$))")
# Options with which a host compiler uses files or directories that the cache cannot track.
_FILES = re.compile(
    r"-(?:include-pch|iquote|iprefix|iwithprefix|isysroot|imacros|imultilib|fplugin|wrapper|B$|M)"
    r"|--?(?:specs|sysroot|config)(?:=|$)|-(?:Wp|o)(?:,|$)"
)
# Compilers run in an empty folder, so only an option with a path makes them use files outside it.
_PATH = re.compile(r"(?!-f[\w-]+-prefix-map=).*/", re.DOTALL)


def for_host(values: Iterable[str]) -> list[str]:
    """Return the words after ``-Xcompiler``; refuse those that would change the device code of NVCC only."""
    words = [word for value in values for word in _WORD.findall(value)]
    for word in words:
        refuse_files(word, f"-Xcompiler {word}")
        for name in _OWN:
            if word.startswith(name):
                raise InvalidRequest(
                    f"-Xcompiler {word}: give {name} without -Xcompiler, so that NVRTC gets it too"
                )
    return words


def refuse_files(word: str, shown: str) -> None:
    """Raise `InvalidRequest` if an option makes a program use a file that the cache cannot see."""
    if _OPTIONS_FILE.search(word) or _PATH.match(word) or _FILES.match(word):
        raise InvalidRequest(
            f"{shown!r} makes a compiler read or write files that the cache does not track, so their "
            "changes would go unnoticed; give directories by -I and -idirafter, headers by -include, "
            "and the options themselves instead of a file that contains them"
        )


def distrusted(options: Iterable[str]) -> list[str]:
    """Return each option that an untrusted record must not contain, and why: it runs or writes something."""
    found = parse(options)
    why = [f"--{name} {BY_NAME[name].does}" for name, _ in found.flags if BY_NAME[name].does]
    for word in found.unknown:
        name, _, value = word.partition("=")
        parts = [name, *value.split(",")] if name.endswith("-Xcudafe") else [word]
        if not HARMLESS.issuperset(name_and_value(part)[0] for part in parts if part[:1] == "-"):
            why.append(f"rtcompile does not know what a compiler does with {word}")
    return why


# --- Every spelling of every compiler option becomes one normal form ------------------------------

_T = TypeVar("_T")


class ArchOption(NamedTuple):
    """An architecture in the options; `virtual` for its PTX (``compute_90``)."""

    arch: Arch
    virtual: bool = False

    def __str__(self) -> str:
        return self.arch.virtual if self.virtual else str(self.arch)


class Options(NamedTuple):
    """Compiler options in normal form. Tuples keep the given order unless stated otherwise."""

    arch: tuple[ArchOption, ...] = ()  # several for ``-gencode`` or a list
    # ("D", "NAME=VALUE") or ("U", "NAME"), one for each name: the last given.
    macros: tuple[tuple[str, str], ...] = ()
    include_dirs: tuple[str, ...] = ()  # ``-I``, then ``-isystem``
    pre_includes: tuple[str, ...] = ()  # ``-include``
    # Long name and value ("" where it takes none), sorted by name.
    flags: tuple[tuple[str, str], ...] = ()
    ptxas: tuple[str, ...] = ()
    # Options that are not in the table; the compiler gets them unchanged.
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # changes made while parsing, and why
    # ``-idirafter``: searched after all others, even the toolkit's.
    last_dirs: tuple[str, ...] = ()

    def get(self, name: str) -> str | None:
        """Return the value of the flag `name` ("" where it takes none), None if not given."""
        return dict(self.flags).get(name)

    @computed_once
    def rdc(self) -> bool:
        """Relocatable device code: the result must be linked."""
        return self.get("relocatable-device-code") == "true"

    @computed_once
    def lto(self) -> bool:
        """Link-time optimisation: the result is LTO-IR and must be linked."""
        return self.get("dlink-time-opt") is not None

    @computed_once
    def writes_paths(self) -> bool:
        """Device debug or line information: source paths reach the binary."""
        return any(name in ("device-debug", "generate-line-info") for name, _ in self.flags)

    def arch_for(self, capability: tuple[int, int] | None) -> ArchOption | None:
        """Return the requested architecture that runs best on a device (without one: the last); None if none is named."""
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
            requested = ", ".join(map(str, self.arch))
            raise UnsupportedArch(
                f"the options name {requested}, which a device of compute capability "
                f"{capability[0]}.{capability[1]} cannot run; leave the architecture out and it "
                "is chosen for the device"
            )
        return max(runnable, key=lambda option: (not option.virtual, option.arch))

    def with_defaults(self, debug: bool = False) -> Options:
        """Add CuPy's implicit options, each only where the user gave none."""
        flags = dict(self.flags)
        flags.setdefault("std", "c++17")
        if "use_fast_math" not in flags:  # --use_fast_math implies -ftz=true
            flags.setdefault("ftz", "true")
        flags["device-as-default-execution-space"] = ""
        if debug:
            flags["device-debug"] = flags["generate-line-info"] = ""
        return self._replace(flags=tuple(sorted(flags.items())))

    def adding(self, *options: str) -> Options:
        """Return these options followed by `options`, which take precedence."""
        return self.merged(parse(options))

    def merged(self, more: Options) -> Options:
        """Return these options followed by `more`, which take precedence."""
        macros = {_macro_name(text): (kind, text) for kind, text in self.macros + more.macros}
        flags = {**dict(self.flags), **dict(more.flags)}
        for name, value in self.flags:
            if BY_NAME[name].takes == "values":
                flags[name] = ",".join(_unique([*value.split(","), *flags[name].split(",")]))
        lists = "include_dirs", "pre_includes", "ptxas", "notes", "last_dirs"
        return more._replace(
            arch=more.arch or self.arch,
            macros=tuple(macros.values()),
            flags=tuple(sorted(flags.items())),
            unknown=self.unknown + more.unknown,
            **{each: _unique(getattr(self, each) + getattr(more, each)) for each in lists},
        )

    @computed_once
    def key_fields(self) -> tuple[tuple[str, str], ...]:
        """The key fields of these options: no directories, and sorted where order has no effect."""
        fields = [(name, value) for name, value in self.flags if not BY_NAME[name].is_dropped]
        fields += [(kind, text) for kind, text in sorted(self.macros)]
        fields += [("pre-include", posixpath.basename(path)) for path in self.pre_includes]
        fields += [("ptxas", option) for option in self.ptxas]
        fields += [("unknown", option) for option in self.unknown]
        return tuple(fields)


def requested_architecture(
    request: CompileRequest, options: Options, capability: tuple[int, int] | None
) -> Choice | None:
    """Return the architecture that the caller chose (of several, the device's best); None if the caller chose none."""
    if request.arch is not None:
        return Choice(request.arch, request.target, "requested by arch=")
    requested = options.arch_for(capability)
    if requested is None:
        return None
    target = "ptx" if requested.virtual and request.target == "cubin" else request.target
    return Choice(requested.arch, target, "requested by the options")


def parse(options: Iterable[str]) -> Options:
    """Read compiler options in any spelling; refuse those that read a file whose changes the cache cannot notice."""
    reader = _Reader(list(all_words(options)))
    while reader.words:
        reader.read(reader.words.pop())
    return reader.options()


def with_directories(options: Iterable[str], moved: Callable[[str], str]) -> tuple[str, ...]:
    """Return options with the header directories replaced as `moved` maps them."""
    found: list[str] = []
    words = all_words(options)
    for word in words:
        name, value = name_and_value(word)
        if name in BY_SPELLING and BY_SPELLING[name].name in _DIRECTORIES:
            path = next(words, "") if value is None else value
            found += [f"-{name}", moved(unquoted(path))]
        else:
            found.append(word)
    return tuple(found)


class _Reader:
    """The parser's state; `words` contains the words still to be read, in reverse order."""

    def __init__(self, words: list[str]) -> None:
        self.words = words[::-1]
        self.flags: dict[str, str] = {}
        self.macros: dict[str, tuple[str, str]] = {}
        self.lists: defaultdict[str, list[str]] = defaultdict(list)  # of paths, words and notes
        self.requested: list[ArchOption] = []
        self.codes: list[ArchOption] = []
        self.generated: list[ArchOption] = []

    def read(self, word: str) -> None:
        name, value = name_and_value(word)
        spec = BY_SPELLING.get(name)
        if spec is not None:
            self.option(spec, word, value)
        elif name in SHORTHANDS:
            self.words.append(SHORTHANDS[name])
        elif name in REFUSED:
            raise InvalidRequest(f"{word!r} {REFUSED[name]}")
        else:
            refuse_files(word, word)
            self.lists["unknown"].append(word)

    def option(self, spec: Spec, word: str, value: str | None) -> None:
        if spec.takes == "nothing":
            if value is not None:
                raise InvalidRequest(f"{word!r}: --{spec.name} takes no value")
            self.flags[spec.name] = ""
            return
        if value is None:
            implied = spec.implied and (not self.words or self.words[-1].startswith("-"))
            if not (implied or self.words):
                raise InvalidRequest(f"{word!r} needs a value, and no option follows it")
            value = spec.implied if implied else self.words.pop()
        if spec.takes == "path":
            self.lists[spec.name].append(unquoted(value))
        elif spec.name in _READINGS:
            _READINGS[spec.name](self, value)
        else:
            self.flag(spec, word, value)

    def flag(self, spec: Spec, word: str, value: str) -> None:
        if spec.takes == "boolean" and value not in ("true", "false"):
            raise InvalidRequest(f"{word!r}: --{spec.name} is true or false, not {value!r}")
        if spec.takes == "number" and not value.isdecimal():
            raise InvalidRequest(f"{word!r}: --{spec.name} takes a number, not {value!r}")
        if spec.takes == "values":
            before = self.flags.get(spec.name, value)
            value = ",".join(_unique([*before.split(","), *value.split(",")]))
        if spec.name == "std":
            value = self.standard(value)
        self.flags[spec.name] = value

    def standard(self, value: str) -> str:
        name = value.lower()
        if name.startswith("gnu++"):
            name = "c" + name.removeprefix("gnu")
            self.lists["notes"].append(
                f"-std={value} became {name}: no device compiler has GNU dialects"
            )
        if not re.fullmatch(r"c\+\+\w\w", name):  # the compiler checks whether it exists
            raise InvalidRequest(f"-std={value}: expected a standard such as c++17")
        return name

    def macro(self, kind: str, text: str) -> None:
        if text[:1] in QUOTES:  # -D"X=a b": no macro's name begins with a quote
            text = unquoted(text)
        name = _macro_name(text)
        if not name:
            raise InvalidRequest(f"'-{kind}{text}' names no macro")
        self.macros[name] = (kind, text)

    def ptxas_options(self, value: str) -> None:
        # nvcc splits at commas; NVRTC does not, so ptxas would get "-v,-O3" as one option.
        for option in re.split(r"[,\s]+", value):
            refuse_files(option, f"-Xptxas {option}")
            if option and not (option.startswith("-") and option in self.lists["ptxas"]):
                self.lists["ptxas"].append(option)

    def architecture(self, value: str) -> None:
        if value == "native":
            self.requested = []
        elif value in ("all", "all-major"):
            raise InvalidRequest(f"-arch={value}: a build is for one architecture")
        else:
            self.requested = self.arch_list(value)

    def generate_code(self, value: str) -> None:
        # arch= names only the intermediate PTX version.
        virtual, comma, code = value.partition(",code=")
        if not comma or not virtual.startswith("arch="):
            raise InvalidRequest(f"-gencode={value}: expected arch=compute_80,code=sm_80")
        self.generated += self.arch_list(code)

    def arch_list(self, value: str) -> list[ArchOption]:
        requested = []
        for name in value.translate(_WITHOUT_BRACKETS).split(","):
            try:
                arch = Arch.parse(name)
            except ValueError as error:
                raise InvalidRequest(f"-arch={value}: {error}") from None
            if name.startswith("lto_"):
                self.flags["dlink-time-opt"] = ""
            requested.append(ArchOption(arch, virtual=name.startswith(("compute_", "lto_"))))
        return requested

    def options(self) -> Options:
        if host := for_host(self.lists["host"]):
            self.flags["compiler-options"] = ",".join(_unique(host))
        dirs, last, headers = (
            _unique([path for name in names for path in self.lists[name]])
            for names in (("include-path", "system-include"), ("idirafter",), ("pre-include",))
        )
        for path in (*dirs, *last, *headers):
            if _OF_A_PROCESS.match(path):
                raise InvalidRequest(
                    f"options name {shown(path)}, which is another folder for the compiler's process; "
                    "give its real path, as os.path.realpath() returns it"
                )
        named = len({*dirs, *last, *headers})
        if named > _MOST_PATHS:
            raise InvalidRequest(
                f"options name {named:,} directories and headers (-I, -include); each header that a "
                f"source includes is looked for in all of them, so at most {_MOST_PATHS:,} are taken. "
                "Put the headers below fewer directories"
            )
        return Options(
            _unique([*(self.codes or self.requested), *self.generated]),
            tuple(self.macros.values()),
            dirs,
            headers,
            tuple(sorted(self.flags.items())),
            tuple(self.lists["ptxas"]),
            tuple(self.lists["unknown"]),
            _unique(self.lists["notes"]),
            last,
        )


_MOST_PATHS = 1000
# Links with another target in each process, except the root folder, which caller and workers share.
_OF_A_PROCESS = re.compile(r"/+(?:proc/+(?:self|thread-self)/+(?!root(?:/|$))|dev/+fd(?:/|$))")

# Options that are more than a flag with a value.
_READINGS: dict[str, Callable[[_Reader, str], None]] = {
    "define-macro": lambda reader, text: reader.macro("D", text),
    "undefine-macro": lambda reader, text: reader.macro("U", text),
    "compiler-options": lambda reader, value: reader.lists["host"].append(value),
    "ptxas-options": _Reader.ptxas_options,
    "gpu-architecture": _Reader.architecture,
    "gpu-code": lambda reader, value: setattr(reader, "codes", reader.arch_list(value)),
    "generate-code": _Reader.generate_code,
}

_DIRECTORIES = ("include-path", "system-include", "idirafter")
_WITHOUT_BRACKETS = str.maketrans("", "", "[]\"' ")


def _macro_name(text: str) -> str:
    return text.partition("=")[0].partition("(")[0].strip()


def _unique(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
