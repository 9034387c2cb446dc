"""Long C++ type names become short ones: a message names what the user wrote, not how a library spells it.

Layouts of CuTe are written as CuTe prints them: ``(_8,_2):(_1,_8)``. Pure, and linear in the text.
"""

from __future__ import annotations

import re

from rtcompile.request import cxx

# Inline namespaces, which a library changes with each release, and spellings of one type.
_ALWAYS = tuple(
    (re.compile(pattern), shorter)
    for pattern, shorter in (
        (r"\bCUB_\d+_\w+::|\b__4::|\b__cxx11::|\bTHRUST_\d+_\w+::", ""),
        (r"\s+>", ">"),
        (r">\s+::", ">::"),
        (r"(?<![\w:>])::(?=\w)", ""),  # the global namespace, as nvcc writes it
        (r"\b(\d+)(?:UL|L|U|ULL)\b", r"\1"),
        (r"(?<==)(?:cute|cutlass)::", ""),
    )
)
_TOKEN = re.compile(r"[<>(),]|[^<>(),]+")
_LONGEST = 20_000
_DEEPEST = 200


def simplified(text: str) -> str:
    """Return a compiler's message with its types shortened; unchanged where its brackets do not match."""
    if len(text) > _LONGEST:
        return text
    for pattern, shorter in _ALWAYS:
        text = pattern.sub(shorter, text)
    if "<" not in text or re.search(r"operator *[<>-]|<=|<<|->", text):
        return text
    opened: list[tuple[str, str, list[str]]] = []  # text before a bracket, the bracket, its parts
    parts = [""]
    for piece in _TOKEN.findall(text):
        if piece in "<(":
            if len(opened) == _DEEPEST:
                return text
            opened.append((parts.pop(), piece, parts))
            parts = [""]
        elif piece in ">)":
            if not opened or (opened[-1][1] == "<") != (piece == ">"):
                return text
            before, _, outer = opened.pop()
            inner = [part.strip() for part in parts]
            whole = _template(before, inner) if piece == ">" else f"{before}({', '.join(inner)})"
            parts = [*outer, whole]
        elif piece == "," and opened:
            parts.append("")
        else:
            parts[-1] += _unqualified(piece) if opened else piece
    return text if opened else parts[0]


def split(text: str) -> list[str]:
    """Return the parts of a list that are separated by commas outside brackets."""
    return [part for part in cxx.split(text) if part]


def closed(text: str, at: int, pair: str, most: int = 500) -> str:
    """Return what follows an opening bracket up to its own closing one, but not more than `most` characters."""
    depth = 1
    for end in range(at, min(len(text), at + most)):
        depth += (text[end] == pair[0]) - (text[end] == pair[1])
        if not depth:
            return text[at:end]
    return text[at : at + most]


def arguments(frame: str) -> dict[str, str]:
    """Return the template arguments of ``instantiation of "f<N>() [with N=5]"``, shortened, by parameter."""
    inside = simplified(frame).partition("[with ")[2].rpartition("]")[0]
    pairs = (each.partition("=") for each in split(inside))
    return {name: value for name, _, value in pairs}


def _unqualified(text: str) -> str:
    return re.sub(r"\b(?:cute|cutlass)::", "", text)


def _template(before: str, arguments: list[str]) -> str:
    """Return ``before<arguments>``, or the shorter form that the library itself would print."""
    head, name = re.fullmatch(r"(.*?)([\w:]*)", before, re.DOTALL).groups()  # type: ignore[union-attr]
    base = name.rpartition("::")[2]
    if name.startswith("std::") and base in ("basic_string", "basic_ostream", "basic_istream"):
        return f"{head}std::{base.removeprefix('basic_')}"
    arguments = [a for a in arguments if not a.startswith(("std::allocator<", "std::char_traits<"))]
    first = arguments[0] if arguments else ""
    if name in ("tuple", "cute::tuple"):
        return f"{head}({','.join(arguments)})"
    if name in ("Layout", "cute::Layout") and len(arguments) == 2:
        return f"{head}{first}:{arguments[1]}"
    if name in ("C", "cute::C") and first.lstrip("-").isdigit():
        return f"{head}_{first}"
    if base in ("ArrayEngine", "ViewEngine", "ConstViewEngine"):
        return head + first
    if base in ("gmem_ptr", "smem_ptr", "rmem_ptr"):
        return f"{head}{base[:4]} {first.rstrip(' *')}"
    return f"{head}{name}<{', '.join(arguments)}>"
