"""Facts about one build for the placeholders in the catalogue, and the header of each standard name."""

from __future__ import annotations

import configparser
import glob
import os
import re
import signal as signals
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from rtcompile.diagnostic import Diagnostic
from rtcompile.files.headers import SearchDir
from rtcompile.named import computed_once
from rtcompile.request import cxx
from rtcompile.request.values import Arch
from rtcompile.toolkit.catalogue import PART

if TYPE_CHECKING:
    from rtcompile.messages.diagnostics import Attempts


# --- The header that declares each name, read from ``standard_headers.ini`` -----------------------


def read_sections(file: str) -> configparser.RawConfigParser:
    """Return one of this package's ``.ini`` files, whose keys keep their case."""
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(os.path.join(os.path.dirname(__file__), file), encoding="utf-8")
    return parser


# Each maps names to headers: of namespace std; of the global namespace; of the latter and of what NVCC lacks too.
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

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[\w.]+|\S')
_NEAR_TOKENS = 600  # characters before and behind the caret in which tokens are looked for
_LONGEST_SHOWN = 40
LAST = re.compile(r"[\w.]+(?:\[[^\[\]\n]*\])*$|\S$")
_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)", re.MULTILINE)
_MOST_INCLUDED = 200  # at one depth: a hint is worth no more time than that


@dataclass(frozen=True)
class BuildContext:
    """The build to which a message belongs; every field is optional."""

    arch: Arch | None = None
    capability: tuple[int, int] | None = None  # of its device
    backend: str = "nvrtc"  # the compiler that wrote the message
    options: tuple[str, ...] = ()  # the compiler's command line
    # By part of the toolkit: "nvrtc", "cudart", "crt", "cccl", "cutlass", "nvcc".
    versions: Mapping[str, str] = field(default_factory=dict)
    search: tuple[SearchDir, ...] = ()
    source: str = ""
    package_of: Callable[[str], Values | None] = lambda _: None
    # The functions that the compiler's headers declare, for names that are nearly right.
    device_names: Callable[[], Iterable[str]] = lambda: ()
    error: Diagnostic = field(default=Diagnostic("note", ""))  # the message
    # What compiles changed sources, one of which should make the message go away.
    attempts: Attempts | None = None

    def describe(self, part: str) -> str:
        """Return ``"NVRTC 12.9.86"``, with the folder for headers; no version if none is known."""
        text = f"{PART[part].in_text} {self.versions.get(part, '')}".rstrip()
        folder = next((d.path for d in self.search if d.label == part), "")
        return f"{text} ({folder})" if folder else text

    @property
    def line(self) -> int:
        """Return the message's line in the source, 0 if it has none."""
        return self.error.line

    @property
    def text(self) -> str:
        """Return the line that the compiler printed."""
        return self.error.excerpt.partition("\n")[0]

    @property
    def left(self) -> str:
        """Return what stands before the caret in that line."""
        return self.text[: max(0, self.error.column - 1)]

    @property
    def right(self) -> str:
        """Return what stands at the caret and behind it in that line."""
        return self.text[max(0, self.error.column - 1) :]

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
    def is_own(self) -> bool:
        """Return whether the caret is in the source: in its line, or, for a message without a line, at its end."""
        return not (self.line and self.text) or self.in_source

    @computed_once
    def at(self) -> int:
        """Return the offset of the caret in the source."""
        end = len(self.source)  # a line of PTX may be none of the source's
        lines = self.source.split("\n")[: max(0, self.line - 1)]
        at = sum(len(line) + 1 for line in lines) + max(0, self.error.column - 1)
        return min(at, end) if self.line else end

    @computed_once
    def code(self) -> str:
        """Return the source with blanks for comments, literals and directives."""
        return cxx.blanked(self.source, literals=True, directives=True)

    @computed_once
    def plain(self) -> str:
        """Return the source with blanks for comments and directives."""
        return cxx.blanked(self.source, directives=True)

    @computed_once
    def before(self) -> list[Match]:
        """Return the tokens before the caret, the nearest first."""
        begin = self.plain.rfind("\n", 0, max(0, self.at - _NEAR_TOKENS)) + 1  # no token is cut
        return [*_TOKEN.finditer(self.plain, begin, self.at)][::-1]

    @computed_once
    def after(self) -> list[Match]:
        """Return the tokens from the caret on."""
        return [*_TOKEN.finditer(self.plain, self.at, self.at + _NEAR_TOKENS)]

    @property
    def row(self) -> tuple[int, int]:
        """Return where the caret's line begins and ends."""
        return self.code.rfind("\n", 0, self.at) + 1, (self.code + "\n").index("\n", self.at)

    @computed_once
    def around(self) -> tuple[str, int, list[tuple[int, int]]]:
        """Return the function whose call encloses the caret, the offset of its (, and the spans of the arguments."""
        at, depth = self.at - 1, 0
        while at >= 0 and self.code[at] not in ";{}":
            depth += (self.code[at] in ")]") - (self.code[at] in "([")
            if depth < 0:
                return self._called(at)
            at -= 1
        return "", 0, []

    @computed_once
    def call(self) -> tuple[str, int, list[tuple[int, int]]]:
        """Return the same for the function that is called at the caret, or else for the one whose call encloses it."""
        here = re.compile(r"[A-Za-z_]\w*\s*(?=\()").match(self.code, self.at)
        return self._called(here.end()) if here else self.around

    def _called(self, opening: int) -> tuple[str, int, list[tuple[int, int]]]:
        head = self.code[max(0, opening - 200) : opening]
        name = re.search(r"([A-Za-z_]\w*)\s*(?:<[^<>;()]*>|<<<[^;]*>>>)?\s*$", head)
        if name is None or self.code[opening] != "(" or name[1] in ("if", "for", "while", "switch"):
            return "", 0, []
        return name[1], opening, spans(self.code, opening)

    def line_of(self, at: int) -> int:
        """Return the line of an offset, counted from 1."""
        return self.source.count("\n", 0, at) + 1

    def change(self, begin: int, end: int, new: str, fact: str, step: str) -> Values:
        """Return the values for a hint on replacing a part of the source."""
        edited = self.source[:begin] + new + self.source[end:]
        return {"fact": fact, "step": step, "edited": edited}

    def insert(self, text: str, at: int) -> Values:
        """Return the values for a hint on a missing text."""
        before = self.source[:at].rstrip()
        last = LAST.search(before[max(0, len(before) - _LONGEST_SHOWN) :])
        shown = text.strip()
        where = (
            f"behind `{last[0]}` in line {self.line_of(len(before))}" if last else "at the start"
        )
        return self.change(at, at, text, f"`{shown}` is missing {where}", f"Write `{shown}` there")

    def remove(self, token: Match) -> Values:
        """Return the values for a hint on a superfluous token."""
        fact = f"`{token[0]}` in line {self.line_of(token.start())} is one too many"
        return self.change(*token.span(), "", fact, "Remove it")

    def replace(self, token: Match, new: str) -> Values:
        """Return the values for a hint on a wrong token."""
        line = self.line_of(token.start())
        fact = f"`{token[0]}` stands where `{new}` belongs in line {line}"
        return self.change(*token.span(), new, fact, f"Write `{new}` in its place")

    def user_dirs(self) -> tuple[str, ...]:
        """Return the directories that the user's own ``-I`` options added."""
        return tuple(d.path for d in self.search if d.label.startswith("user"))

    def toolkit_dirs(self) -> Iterable[str]:
        """Return the directories that are searched, without those of the user's own ``-I``."""
        own = self.user_dirs()
        return dict.fromkeys(d.path for d in self.search if d.path not in own)

    def user_dir_of(self, path: str) -> str:
        """Return the user's include directory that contains `path`, or an empty string."""
        inside = (d for d in self.user_dirs() if os.path.join(d, "") in path)
        return max(inside, key=len, default="")

    def headers(self, *patterns: str) -> Iterator[tuple[str, str]]:
        """Yield the names and texts of the headers that are directly in the searched folders."""
        return (each for d in self.search for each in headers_in(d.path, *patterns))

    def included(self, depth: int = 1) -> Iterator[str]:
        """Yield the texts of the headers that the source includes, and, at greater depths, of those that they include."""
        texts, seen = [self.source], set[str]()
        for _ in range(depth):
            names = [name for text in texts for name in _INCLUDED.findall(text) if name not in seen]
            texts = []
            for name in dict.fromkeys(names[:_MOST_INCLUDED]):
                seen.add(name)
                paths = (os.path.join(directory.path, name) for directory in self.search)
                if text := next(filter(None, map(text_of, paths)), ""):
                    texts.append(text)
                    yield text

    def with_header(self, header: str) -> str:
        """Return the source with one more header, before the first that it includes; "" without a source."""
        if not self.source:
            return ""
        first = re.search(r"^[ \t]*#[ \t]*include", self.source, re.MULTILINE)
        at = first.start() if first else 0
        return f"{self.source[:at]}#include <{header}>\n{self.source[at:]}"

    def with_text(self, text: str, right: str) -> str:
        """Return the source with another text on the message's line, at the caret or behind it."""
        begin, end = self.row
        at = self.source.find(text, self.at, end)
        at = self.source.find(text, begin, end) if at < 0 else at
        if at < 0 or not self.in_source:
            return self.source
        return self.source[:at] + right + self.source[at + len(text) :]


def spans(code: str, opening: int) -> list[tuple[int, int]]:
    """Return where each argument begins and ends, for the call whose ( is at the offset `opening`."""
    end = opening + 1 + len(cxx.enclosed(code, opening))
    return [*cxx.spans(code, opening + 1, end, BRACKETS)]


BRACKETS = "([{)]}"  # of expressions, in which < and > are operators


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
            yield os.path.basename(path), text_of(path)


def text_of(path: str) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# A function of the match of a message's pattern and of a build, for a row of ``catalogue.ini``, here and in the modules
# beside. It returns the values for the row's templates, or None if the explanation does not apply to this build.
Values = Mapping[str, str]
Match = re.Match[str]
Fill = Callable[[Match, BuildContext], "Values | Iterator[Values] | None"]


def of_build(context: BuildContext) -> Values:
    """Return the names that every template may use."""
    capability = context.capability
    return {
        **{part: context.describe(part) for part in PART},
        "arch": str(context.arch or "the build's architecture"),
        "device": "the device"
        + (" (compute capability {}.{})".format(*capability) if capability else ""),
        "compiler": context.describe(context.backend),
        "given_std": _standard(context)[0] or "an older standard",
    }


_SHELL_TEXTS = {"Segmentation fault": "11", "Aborted": "6"}  # what shells print for signals


def first_nvrtc(match: Match, context: BuildContext) -> Values | None:
    """Apply to an option that a newer NVRTC than this one knows."""
    needs = TABLES["first nvrtc"].get(match["name"], "")
    own, first = (
        [*map(int, re.findall(r"\d+", each))] for each in (context.versions.get("nvrtc", ""), needs)
    )
    return {"needs": needs} if needs and own < (first if own else [1]) else None


def declared_in(match: Match, context: BuildContext) -> Values | None:
    """Name the header of a name, unless the source includes it, or the error is in a library's header."""
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


def older_than(wanted: str) -> Fill:
    """Apply to a build whose -std is an earlier one; no build has C++20 without the option."""

    def standard(match: Match, context: BuildContext) -> Values | None:
        given, year = _standard(context)
        if year >= int(wanted) or (not year and int(wanted) < 20):
            return None
        what = next(filter(None, match.groups()), "").strip()
        said = f"the options have {given}" if given else "the compiler read an older standard"
        return {"what": what, "given": said, "adding": f"-std=c++{wanted}", "known": "yes"}

    return standard


def packaged(match: Match, context: BuildContext) -> Values | None:
    return context.package_of(match["header"])


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


def signal(match: Match, context: BuildContext) -> Values:
    number = int(match["signal"] or _SHELL_TEXTS[match[0]])
    other = "nvrtc" if context.backend == "nvcc" else "nvcc"
    return {"how": signals.Signals(number).name, "other": other}


def row_of(table: str) -> Fill:
    """Return a table's row whose key fits the pattern's first group, where case and underscores do not count."""

    def looked_up(match: Match, _: BuildContext) -> Values | None:
        name = _plain(next(filter(None, match.groups()), ""))
        rows = (row for key, row in TABLES[table].items() if fnmatchcase(name, _plain(key)))
        return {"row": row.replace(" | ", " ", 1)} if (row := next(rows, None)) else None

    return looked_up


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def with_option(pattern: str) -> Fill:
    """Apply to a build with an option that begins with a pattern; return all such options."""

    def found(match: Match, context: BuildContext) -> Values | None:
        kind = (match.groupdict().get("kind") or "").upper()
        begins = re.compile(pattern.replace("{KIND}", kind))
        given = ", ".join(filter(begins.match, context.options))
        return {"given": given} if given else None

    return found
