"""Writes the two walks of docs/architecture.md from a profile: ``python -m docs.walks``.

A walk lists the functions of rtcompile that the calling process runs for one hit or one miss: of each module the
function with the most calls below it, and of these the dozen largest, in the order of calls, each indented below
its caller. ``python -m docs.walks hit`` or ``miss`` prints every function instead. A test fails where the page
names a function that is not passed, or not in this order.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).parent / "architecture.md"
MAX_LINES = 12
BEGIN, END = "<!-- {} walked by docs/walks.py -->\n", "<!-- end of the {} -->\n"
KINDS = ("hit", "miss")

_SOURCE = 'extern "C" __global__ void k(float* x) { x[0] = %d; }'
_CHILD = "from docs import walks; walks._in_child({kind!r})"


class Call:
    """A call of one of rtcompile's functions, and the calls that it made."""

    def __init__(self, module: str, name: str, says: str, depth: int) -> None:
        self.module = module
        self.name = name
        self.says = says
        self.depth = depth
        self.calls: list[Call] = []

    def below(self) -> list[Call]:
        """Return the calls under this one, in order."""
        return [each for call in self.calls for each in (call, *call.below())]

    def functions(self) -> int:
        """Return how many functions this call passes."""
        return len({call.name for call in self.below()})


def profiled(kind: str) -> list[Call]:
    """Return the calls that one hit or one miss makes, in a process of its own with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD.format(kind=kind)],
            cwd=ROOT,
            env={**os.environ, "RTCOMPILE_CACHE_DIR": folder, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the profiled process failed:\n{done.stderr}")
    root = Call("", "", "", -1)
    under = [root]
    for line in done.stdout.splitlines():
        depth, module, name, says = line.split("\t")
        call = Call(module, f"{module}.{name}", says, int(depth))
        del under[call.depth + 1 :]
        under[-1].calls.append(call)
        under.append(call)
    return root.calls


def _in_child(kind: str) -> None:
    """Print the calls of one hit or of one miss, the first of its process, where the toolchain is known."""
    import rtcompile

    _ = rtcompile.compile  # its import is none of the walk

    def build(number: int) -> None:
        rtcompile.compile(_SOURCE % number, arch="sm_80")

    # Another process puts this kernel, or another one, into the cache.
    source = _SOURCE % (1 if kind == "hit" else 2)
    fill = f"import rtcompile; rtcompile.compile({source!r}, arch='sm_80')"
    subprocess.run([sys.executable, "-c", fill], check=True)
    calls: list[tuple[int, str, str, str]] = []
    depth = [0]
    package = str(ROOT / "rtcompile") + os.sep

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        # What an import runs (a module's and a class's body) is no call of the walk, nor is a comprehension or the edge
        # of `errors.public`.
        if not code.co_filename.startswith(package) or code.co_name[0] == "<":
            return
        if code.co_name == "edge" or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        if event == "call":
            module = ".".join(Path(code.co_filename[len(package) :]).with_suffix("").parts)
            calls.append((depth[0], module, _name(frame), _says(frame)))
            depth[0] += 1
        elif event == "return":
            depth[0] -= 1

    sys.setprofile(note)
    build(1)
    sys.setprofile(None)
    for call in calls:
        print(*call, sep="\t")


def _name(frame: Any) -> str:
    """Return the name of a frame's function, with its class's."""
    code = frame.f_code
    if sys.version_info < (3, 11):  # code does not know its qualified name
        is_method = code.co_varnames[:1] == ("self",)
        return (
            f"{type(frame.f_locals['self']).__name__}.{code.co_name}" if is_method else code.co_name
        )
    return code.co_qualname.replace("<locals>.", "")


def _says(frame: Any) -> str:
    """Return the first line of the docstring of a frame's function, or nothing."""
    code = frame.f_code
    found = code.co_consts[0] if code.co_consts else None
    if not isinstance(found, str) or not code.co_flags & inspect.CO_OPTIMIZED:
        return ""
    return found.strip().partition("\n")[0]


def chosen(calls: list[Call]) -> list[Call]:
    """Return the calls of the walk: of each module the one with most below it, and of these the largest."""
    largest: dict[str, Call] = {}
    everything = [each for top in calls for each in (top, *top.below())]
    for call in everything:
        before = largest.setdefault(call.module, call)
        if call.functions() > before.functions():
            largest[call.module] = call
    shown = sorted(largest.values(), key=lambda call: -call.functions())[:MAX_LINES]
    return [call for call in everything if call in shown]


def written(calls: list[Call]) -> str:
    """Return the walk as a block of text: a line for each function, with what its docstring says."""
    shown = chosen(calls)
    depths = sorted({call.depth for call in shown})
    lines = []
    for call in shown:
        indent = "  " * depths.index(call.depth)
        lines.append(f"{indent}{call.name}" + (f": {call.says}" if call.says else ""))
    return "```text\n" + "\n".join(lines) + "\n```\n"


def names_in(page: str, kind: str) -> list[str]:
    """Return the functions that a page's walk names, in order."""
    block = page.partition(BEGIN.format(kind))[2].partition(END.format(kind))[0]
    return re.findall(r"^ *([\w.]+)", block.replace("```text", "").replace("```", ""), re.MULTILINE)


def walked_in(page: str) -> str:
    """Return the page with both walks written anew."""
    for kind in KINDS:
        before, begin, rest = page.partition(BEGIN.format(kind))
        _, end, after = rest.partition(END.format(kind))
        page = before + begin + written(profiled(kind)) + end + after
    return page


def main(kinds: list[str]) -> None:
    """Write the page, or print every function of the walks that are named."""
    if not kinds:
        PAGE.write_text(walked_in(PAGE.read_text()))
    for kind in kinds:
        calls = profiled(kind)
        passed = [each for top in calls for each in (top, *top.below())]
        names = {call.name for call in passed}
        modules = {call.module for call in passed}
        for call in passed:
            print("  " * call.depth + call.name)
        print(f"a {kind}: {len(names)} functions in {len(modules)} modules, {len(passed)} calls\n")


if __name__ == "__main__":
    main(sys.argv[1:])
