"""Facts about one build for the placeholders in the catalogue, and the header of each standard name."""

from __future__ import annotations

import configparser
import functools
import glob
import os
import re
import signal as signals
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from rtcompile.diagnostic import Diagnostic
from rtcompile.files.headers import SearchDir
from rtcompile.request import cxx
from rtcompile.request.values import Arch

if TYPE_CHECKING:
    from rtcompile.messages.available import HeaderAdvice
    from rtcompile.messages.diagnostics import Attempts


# --- The header that declares each name, read from ``standard_headers.ini`` -----------------------


def read_sections(file: str) -> configparser.RawConfigParser:
    """Return one of this package's ``.ini`` files, whose keys keep their case."""
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(os.path.join(os.path.dirname(__file__), file), encoding="utf-8")
    return parser


# Name to header: for namespace std, for the global namespace, and with the names that NVCC lacks too.
STD, GLOBAL, DECLARED = (
    {name: header for header, names in section.items() for name in names.split()}
    for section in map(
        read_sections("standard_headers.ini").__getitem__, ("std", "global", "declared")
    )
)
DECLARED |= GLOBAL
# What ``names.ini`` says of each name, by section.
TABLES = {
    section: {name: text for names, text in rows.items() for name in names.split()}
    for section, rows in read_sections("names.ini").items()
}


# --- Facts about a build, and the functions that fill in templates --------------------------------

_PART_NAMES = {
    "nvrtc": "NVRTC",
    "nvcc": "nvcc",
    "nvjitlink": "nvJitLink",
    "cudart": "the CUDA headers",
    "crt": "the crt headers",
    "cccl": "CCCL",
    "cutlass": "CUTLASS",
}


_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)", re.MULTILINE)
_MOST_INCLUDED = 200  # at one depth: a hint is worth no more time than that


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The build to which a message belongs; every field is optional."""

    arch: Arch | None = None
    target: str = "cubin"
    capability: tuple[int, int] | None = None  # of its device
    backend: str = "nvrtc"  # the compiler that wrote the message
    options: tuple[str, ...] = ()  # the compiler's command line
    # By part of the toolkit: "nvrtc", "cudart", "crt", "cccl", "cutlass", "nvcc".
    versions: Mapping[str, str] = field(default_factory=dict)
    search: tuple[SearchDir, ...] = ()
    source: str = ""
    package_of: Callable[[str], HeaderAdvice | None] = lambda _: None
    # The functions that the compiler's headers declare, for names that are nearly right.
    device_names: Callable[[], Iterable[str]] = lambda: ()
    # The message's line in `source`, its column, the compiler's excerpt, and its notes.
    line: int = 0
    column: int = 0
    excerpt: str = ""
    notes: tuple[Diagnostic, ...] = ()
    # What compiles changed sources, and the message that a change should make go away.
    attempts: Attempts | None = None
    error: Diagnostic | None = None

    def proof(self, source: str, options: tuple[str, ...] = ()) -> str:
        """Return a sentence on what a changed source does to the message; "" if it does not help, or cannot be tried."""
        if self.attempts is None or self.error is None:
            return ""
        return self.attempts.proof(self.error, source, options)

    def only(self, facts: str) -> BuildContext | None:
        """Return a context with only the named fields; None if one without a question mark is not known."""
        names = [name for name in facts.split() if name != "words"]
        if not all(name.endswith("?") or getattr(self, name) for name in names):
            return None
        kept = {name.rstrip("?") for name in names}
        kept |= {"column", "excerpt", "notes"} if "line" in kept else set()
        return BuildContext(**{name: getattr(self, name) for name in kept})

    def describe(self, part: str) -> str:
        """Return ``"NVRTC 12.9.86"``, with the folder for headers; no version if none is known."""
        text = f"{_PART_NAMES.get(part, part)} {self.versions.get(part, '')}".rstrip()
        folder = next((d.path for d in self.search if d.label == part), "")
        return f"{text} ({folder})" if folder else text

    def version_pair(self, part: str) -> tuple[int, int] | None:
        """Return ``(12, 9)`` for a part of version 12.9.86, None if it is not known."""
        numbers = re.match(r"(\d+)\.(\d+)", self.versions.get(part, ""))
        return (int(numbers[1]), int(numbers[2])) if numbers else None

    @property
    def text(self) -> str:
        """Return the line that the compiler printed."""
        return self.excerpt.partition("\n")[0]

    @property
    def left(self) -> str:
        """Return what stands before the caret in that line."""
        return self.text[: max(0, self.column - 1)]

    @property
    def right(self) -> str:
        """Return what stands at the caret and behind it in that line."""
        return self.text[max(0, self.column - 1) :]

    @property
    def word(self) -> str:
        """Return the word at the caret."""
        return cxx.word_at(self.right, 0)

    @property
    def in_source(self) -> bool:
        """Return whether that line is the source's: no header's, and not renumbered."""
        own = self.source.split("\n")[self.line - 1 : self.line] if self.line else []
        return [each.strip() for each in own] == [self.text.strip()]

    @property
    def at(self) -> int:
        """Return the offset of the caret in the source."""
        lines = self.source.split("\n")[: max(0, self.line - 1)]
        return sum(len(line) + 1 for line in lines) + max(0, self.column - 1)

    @property
    def code(self) -> str:
        """Return the source with blanks for comments, literals and directives."""
        return cxx.blanked(self.source, literals=True, directives=True)

    def user_dirs(self) -> tuple[str, ...]:
        """Return the directories that the user's own ``-I`` options added."""
        return tuple(d.path for d in self.search if d.label.startswith("user"))

    def user_dir_of(self, path: str) -> str:
        """Return the user's include directory that contains `path`, or an empty string."""
        inside = (d for d in self.user_dirs() if os.path.join(d, "") in path)
        return max(inside, key=len, default="")

    def header_of(self, name: str) -> list[str]:
        """Return the toolkit's header that declares `name`, and the one that includes it; [] if none does."""
        own, word = self.user_dirs(), re.escape(name)
        declares = re.compile(  # in a line that is not indented: what is inside a function or a class is not meant
            rf"^(?:#[ \t]*define[ \t]+{word}\b|(?:typedef|struct|class|union|using)\b[^;{{}}()]*\b{word}\b"
            rf"|(?!.*\b(?:CUDAAPI|CUDARTAPI)\b)[A-Za-z_][\w:<>,*& \t()]*[\s*&]{word}[ \t]*\()",
            re.MULTILINE,
        )
        for folder in dict.fromkeys(d.path for d in self.search if d.path not in own):
            texts = dict(headers_in(folder))
            texts.pop("cuda.h", None)  # the driver's functions are the host's
            found = [
                f
                for f, text in texts.items()
                if name in text and declares.search(cxx.blanked(text))
            ]
            if not found:
                continue
            first = min(
                found, key=lambda file: (not name.startswith(file.partition(".")[0]), len(file))
            )
            includes = re.compile(rf'#\s*include\s*[<"]{re.escape(first)}')
            stem = first.partition(".")[0]
            family = stem.partition("_")[0]
            family = stem if family == "cuda" else family  # cuda_fp8.h is no part of cuda_bf16.h
            outer = (
                f
                for f, text in texts.items()
                if f.startswith(family) and f != first and includes.search(text)
            )
            return [first, *islice(outer, 1)]
        return []

    def included(self, depth: int = 1) -> Iterator[str]:
        """Yield the texts of the headers that the source includes, and, at greater depths, of those that they include."""
        texts, seen = [self.source], set[str]()
        for _ in range(depth):
            names = [name for text in texts for name in _INCLUDED.findall(text) if name not in seen]
            texts = []
            for name in dict.fromkeys(names[:_MOST_INCLUDED]):
                seen.add(name)
                paths = (os.path.join(directory.path, name) for directory in self.search)
                path = next(filter(os.path.isfile, paths), "")
                with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(file.read())
                    yield texts[-1]

    def with_header(self, header: str) -> str:
        """Return the source with one more header, before the first that it includes; "" without a source."""
        if not self.source:
            return ""
        first = re.search(r"^[ \t]*#[ \t]*include", self.source, re.MULTILINE)
        at = first.start() if first else 0
        return f"{self.source[:at]}#include <{header}>\n{self.source[at:]}"

    def with_text(self, text: str, right: str) -> str:
        """Return the source with another text on the message's line, at the caret or behind it."""
        lines = self.source.split("\n")
        if not 0 < self.line <= len(lines) or lines[self.line - 1].strip() != self.text.strip():
            return self.source
        own = lines[self.line - 1]
        at = own.find(text, max(0, self.column - 1))
        at = own.find(text) if at < 0 else at
        if at >= 0:
            lines[self.line - 1] = own[:at] + right + own[at + len(text) :]
        return "\n".join(lines)

    def has_option(self, *spellings: str) -> bool:
        """Whether the command line contains an option that begins with one of `spellings`."""
        return any(option.startswith(spellings) for option in self.options)


def renamed(source: str, word: str, right: str) -> str:
    """Return the source with another name for a word of its code."""
    code, parts, at = cxx.blanked(source, literals=True), list[str](), 0
    for found in re.finditer(rf"\b{re.escape(word)}\b", code):
        parts += [source[at : found.start()], right]
        at = found.end() + (not right and source.startswith(" ", found.end()))
    return "".join([*parts, source[at:]])


def headers_in(folder: str, *patterns: str) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the headers that are directly in a folder."""
    for pattern in patterns or ("*.h", "*.hpp", "*.cuh"):
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern))):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    yield os.path.basename(path), file.read()
            except OSError:
                continue


# A function of the match of a message's pattern and of a build, for a row of ``catalogue.ini``, here and in the modules
# beside. It returns the values for the row's templates, or None if the explanation does not apply to this build.
Values = Mapping[str, str]
Match = re.Match[str]
Fill = Callable[[Match, BuildContext], "Values | Iterator[Values] | None"]


def of_build(context: BuildContext) -> Values:
    """Return the names that every template may use."""
    capability = context.capability
    return {
        **{part: context.describe(part) for part in _PART_NAMES},
        "arch": str(context.arch or "the build's architecture"),
        "device": "the device"
        + (" (compute capability {}.{})".format(*capability) if capability else ""),
        "compiler": context.describe(context.backend),
        "given_std": _standard(context)[0] or "an older standard",
    }


_SHELL_TEXTS = {"Segmentation fault": "11", "Aborted": "6"}  # what shells print for signals


def first_nvrtc(match: Match, context: BuildContext) -> Values | None:
    """Apply to an option that a newer NVRTC than this one knows."""
    needs, own = TABLES["first nvrtc"].get(match["name"]), context.version_pair("nvrtc")
    known = needs and re.match(r"(\d+)\.(\d+)", needs)
    is_newer = own and known and own >= (int(known[1]), int(known[2]))
    return {"needs": needs} if needs and not is_newer else None


def declared_in(match: Match, context: BuildContext) -> Values | None:
    """Name the header of a name, unless the source includes it, or a library's header lacks the name."""
    if "/include/" in match.string.partition(": ")[0]:
        return None
    std = match.groupdict().get("member")
    header = STD.get(std) if std else DECLARED.get(match["identifier"])
    is_included = header and re.search(
        rf"#\s*include\s*[<\"](?:cuda/std/)?{header}[>\"]", context.source
    )
    if not header or is_included:
        return None
    return {"header": header, "edited": context.with_header(header), "known": "yes"}


def leak(match: Match, context: BuildContext) -> Values:
    hosts = [d for d in context.user_dirs() if d.startswith(("/usr/include", "/usr/lib/gcc"))]
    folder = context.user_dir_of(match.string) or next(iter(hosts), "")
    return {"leak": f"-I{folder}" if folder else "the -I that leads there"}


def beyond_arch(match: Match, context: BuildContext) -> Values | None:
    name = match["identifier"] or match.groupdict().get("scope") or ""
    needs = TABLES["first device"].get(name)
    if needs is None or (context.arch is not None and context.arch.number >= int(needs)):
        return None
    return {"needs": f"sm_{needs}", "identifier": name}


def _older_than(wanted: int, match: Match, context: BuildContext) -> Values | None:
    """Apply to a build whose -std is an earlier one; no build has C++20 without the option."""
    given, year = _standard(context)
    if year >= wanted or (not year and wanted < 20):
        return None
    what = next((text for text in match.groups() if text), "")
    standard = f"the options have {given}" if given else "the compiler read an older standard"
    adding = f"-std=c++{wanted}"
    return {"what": what.strip(), "given": standard, "adding": adding, "known": "yes"}


def _standard(context: BuildContext) -> tuple[str, int]:
    """Return the -std option as given, and its year, 14 for C++14; "" and 0 without the option."""
    given = [o for o in context.options if re.match(r"--?std", o)]
    year = re.search(r"\+\+(\w\w)", given[-1]) if given else None
    years = {"03": 3, "0x": 11, "1y": 14, "1z": 17, "2a": 20}
    if year is None:
        return (given[-1] if given else ""), 0
    return given[-1], years.get(year[1]) or int(re.sub(r"\D", "0", year[1]))


def mixed(match: Match, context: BuildContext) -> Values:
    found = [context.describe(part) for part in ("nvrtc", "cudart", "crt", "cccl")]
    folder = context.user_dir_of(match.string)
    if folder:
        remove = f"Remove -I{folder}: the file named above comes from there"
    elif context.user_dirs():
        remove = f"Remove the one of {', '.join(context.user_dirs())} that contains CUDA headers"
    else:
        remove = "Install one version of all of them; `rtcompile doctor` shows which differ"
    return {"found": "; ".join(found), "remove": remove}


def cutlass(match: Match, context: BuildContext) -> Values:
    """Return both versions, and how to install a pair that fits together."""
    own = next((folder for folder in context.user_dirs() if os.path.isdir(f"{folder}/cute")), "")
    step = (
        f"Remove -I{own} and set RTCOMPILE_CUTLASS_PATH={own}: then the shims for this CCCL "
        "are searched before it."
        if own
        else "`pip install nvidia-cutlass` brings 4.2, which goes with every CUDA since 12.4; "
        "RTCOMPILE_CUTLASS_PATH and CUTLASS_PATH must not name another."
    )
    name = f"CUTLASS of {own}" if own else context.describe("cutlass")
    return {"found": f"{name} and {context.describe('cccl')}", "step": step}


def instruction(match: Match, _: BuildContext) -> Values | None:
    rows = TABLES["instructions"].items()
    where = next((text for name, text in rows if match["instruction"].startswith(name)), "")
    return {"where": where} if where else None


def signal(match: Match, context: BuildContext) -> Values:
    number = int(match["signal"] or _SHELL_TEXTS[match[0]])
    other = "nvrtc" if context.backend == "nvcc" else "nvcc"
    return {"how": signals.Signals(number).name, "other": other}


_ONE_LETTER = re.compile(r"(?:-D ?|--define-macro=)[A-Za-z]\w?(?:=|$)")
# The values that one expression gives, by the row's ``values``.
SIMPLE: dict[str, Fill] = {
    "host_header": lambda match, _: (
        {"instead": found} if (found := TABLES["std"].get(match["header"])) else None
    ),
    "packaged": lambda match, build: (
        advice._asdict() if (advice := build.package_of(match["header"])) else None
    ),
    **{f"before_cpp{year}": functools.partial(_older_than, year) for year in (14, 17, 20)},
    "minimal": lambda _, build: {} if build.has_option("-minimal", "--minimal") else None,
    "one_letter": lambda _, build: (
        {"macros": ", ".join(found)}
        if (found := [*filter(_ONE_LETTER.match, build.options)])
        else None
    ),
}
