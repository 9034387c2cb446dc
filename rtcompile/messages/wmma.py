"""What is wrong with a fragment of WMMA, or with a call that takes one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages.calls import ALIASES, whole_call
from rtcompile.messages.facts import BuildContext, Match, Values
from rtcompile.request import cxx

# WMMA's element types: their shapes (m, n, k) and the first compute capability
_SHAPES = "16x16x16, 32x8x16, 8x32x16"
_WMMA = {
    "__half": (_SHAPES, 70),
    "signed char": (_SHAPES, 72),
    "unsigned char": (_SHAPES, 72),
    "__nv_bfloat16": (_SHAPES, 80),
    "nvcuda::wmma::precision::tf32": ("16x16x8", 80),
    "double": ("8x8x4", 80),
    "nvcuda::wmma::experimental::precision::s4": ("8x8x32", 75),
    "nvcuda::wmma::experimental::precision::u4": ("8x8x32", 75),
    "nvcuda::wmma::experimental::precision::b1": ("8x8x128", 75),
}


_ACCUMULATORS = {
    "float": f"{_SHAPES}, 16x16x8",
    "__half": _SHAPES,
    "int": f"{_SHAPES}, 8x8x32, 8x8x128",
    "double": "8x8x4",
}


def namespace(_: Match, context: BuildContext) -> Values | None:
    """Return why nvcuda has no namespace wmma in this build."""
    if context.arch is not None and context.arch.number < 70:
        return {"why": f"{context.arch} has no tensor cores; WMMA begins with sm_70."}
    if "mma.h" not in context.source:
        return {"why": "The source does not include <mma.h>."}
    if not context.has_option("-arch", "--gpu-architecture"):
        return {"why": "No architecture was fixed, and mma.h declares nothing below sm_70."}
    return None


def fragment(match: Match, context: BuildContext) -> Values | None:
    """Return in what a fragment differs from those that exist."""
    arguments = [a.strip() for a in (match["fragment"] or "").split(",")]
    if {"<error-type>", "<error-constant>"} & {*arguments}:  # another error says why
        return None
    if len(arguments) < 5:
        kinds = "; ".join(f"{t.split('::')[-1]}: {s}, sm_{n}" for t, (s, n) in _WMMA.items())
        step = "Change the shape, the element type, or the architecture"
        return {
            "why": f"WMMA has these shapes, from these architectures on: {kinds}.",
            "step": step,
        }
    use, shape, element = arguments[0], "x".join(arguments[1:4]), arguments[4]
    name = element.rpartition("::")[2]
    shapes, needs = _WMMA.get(element, ("", 0))
    if shapes and shape not in shapes.split(", ") and use.endswith(("_a", "_b")):
        why = f"{name} has the shapes {shapes} (m x n x k), not {shape}."
    elif "::matrix_" in use and arguments[5:] in ([], ["void"]):
        why = f"{use.rpartition('::')[2]} needs a layout after the type: wmma::row_major or wmma::col_major."
    elif use.endswith("accumulator") and arguments[5:] not in ([], ["void"]):
        why = f"An accumulator has no layout, and this one is given {arguments[5].rpartition('::')[2]}."
        step = f"Write `accumulator, {', '.join(arguments[1:4])}, {name}`".replace("__half", "half")
        return {"why": why, "step": step}
    elif use.endswith("accumulator"):
        why = f"{name} accumulators of {shape} do not exist for {context.arch}: "
        known = _ACCUMULATORS.get(name, "")
        why += f"they are {known}." if known else "they hold float, __half, int or double."
    elif not shapes:
        known = "signed char or unsigned char" if name == "char" else ", ".join(_WMMA)
        why = f"{name} is no input type of WMMA: it takes {known.replace('nvcuda::wmma::', '')}."
    elif context.arch is not None and context.arch.number < needs:
        why = f"{name} fragments begin with sm_{needs}; this build is for {context.arch}."
    else:
        why = f"{name} {shape} needs sm_{needs}: was mma.h read for {context.arch}?"
    step = "Change the shape or the element type"
    step += ", or the architecture" if " sm_" in why else ""
    if "needs a layout" in why:
        step = f"Write `{use.rpartition('::')[2]}, {', '.join(arguments[1:4])}, {name}, wmma::row_major`, or col_major"
    return {"why": why, "step": step.replace("__half", "half")}


def wmma_call(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield in what the fragments and the pointer of a WMMA function do not fit each other."""
    notes = "\n".join([match.string, *(note.message for note in context.notes)])
    given = re.search(r"argument types are: \(([^\n]*)\)", notes)
    types = [*cxx.split(given[1])] if given else []
    pattern = r"nvcuda::wmma::fragment<nvcuda::wmma::(\w+), (\d+), (\d+), (\d+), ([\w: ]+)"
    fragments = [each for each in (re.match(pattern, kind) for kind in types) if each]
    shapes = sorted({"x".join(each.group(2, 3, 4)) for each in fragments})
    if len(shapes) > 1:
        fact = f"The fragments have the shapes {' and '.join(shapes)}, and {match['function']} takes one shape"
        yield {"fact": fact, "step": "Declare all of them with the same m, n and k"}
        return
    pointed = [
        kind.removesuffix(" *").removeprefix("const ") for kind in types if kind.endswith("*")
    ]
    if not fragments or not pointed:
        return
    element, held = fragments[0][5], ALIASES.get(pointed[0], pointed[0])
    if held != ALIASES.get(element, element) and "precision" not in element:
        fact = f"The fragment holds {element}, and the pointer is {pointed[0]}*"
        yield {"fact": fact, "step": f"Pass a pointer to {element}"}
    elif fragments[0][1] == "accumulator" and len(types) < _OF_ACCUMULATOR:
        fact = "An accumulator has no layout of its own, so the last argument states the memory's"
        text = context.text[max(0, context.column - 1) :]
        scopes = re.match(rf"(?:\w+::)*(?={match['function']}\s*\()", text)
        call = re.search(rf"\b{match['function']}\s*\(", text)
        whole = whole_call(text, call) if call else ""
        for scope in (scopes[0], "nvcuda::wmma::") if scopes and whole else ():
            right = f"{whole[:-1]}, {scope}mem_row_major)"
            edited = context.with_text(whole, right)
            yield {"fact": fact, "step": f"Write `{right}`", "edited": edited}
        yield {
            "fact": fact,
            "step": "Add wmma::mem_row_major or wmma::mem_col_major behind the stride",
        }


_OF_ACCUMULATOR = 4  # arguments of a function that reads or writes one
