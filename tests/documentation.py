"""Runs the code blocks of a page of the documentation.

A page's blocks are run in order, in one process and one folder. A comment above a block may declare:

``<!-- file: kernel.cu -->``   the block is written to that file, as the page tells the reader to do;
``<!-- needs: torch -->``      a module, or ``gpu``: without it the block is only parsed;
``<!-- fails: CompileError -->``  the exception that it raises, or the allowed exit codes of its last command.

Python is executed, as are the lines of a shell block that begin with ``rtcompile`` or ``python``; CUDA
is compiled, unless it is a part of a source (``<!-- part -->``); TOML and JSON are parsed. On a machine
without a GPU kernels are compiled for sm_90a and not launched, and CuPy's arrays are NumPy's.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from tests import doors

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if "_build" not in path.parts and path.name != "CHANGELOG.md"
)
# Their blocks fail on purpose; tests/messages/test_mistakes.py provokes the errors.
_MISTAKES = ("mistakes.md", "mistakes-whole.md")
RUN = [page for page in PAGES if page.name not in _MISTAKES]
_FENCE = re.compile(r"^(`{3,})(.*)$")
_COMMENT = re.compile(r"^<!-- (file|needs|fails|part)(?:: (.+?))? -->$")
_RUN = re.compile(r"^(?:\w+=\S+ )*(?:rtcompile|python) ")


@dataclass
class Block:
    """A fenced block: its language, its text, its line, and the comments above it."""

    language: str
    text: str
    line: int
    declared: dict[str, str] = field(default_factory=dict)


def blocks(page: Path) -> Iterator[Block]:
    declared: dict[str, str] = {}
    fence, language, start, lines = "", "", 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        found = _FENCE.match(line)
        if fence:
            if found and found[1] == fence and not found[2]:
                yield Block(language, "\n".join(lines) + "\n", start, declared)
                fence, declared = "", {}
            else:
                lines.append(line)
        elif found:
            fence, language, start, lines = found[1], found[2].strip(), number, []
        elif comment := _COMMENT.match(line):
            declared[comment[1]] = comment[2] or ""
        elif line.strip():
            declared = {}


def run(page: Path, as_is: bool = False) -> None:
    """Run a page's blocks in the working directory; raise if one does not behave as declared."""
    if not as_is and not has("gpu"):
        pretend()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if "file" in block.declared:
            path = Path(block.declared["file"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        try:
            _run_block(block, namespace)
        except BaseException as error:
            raise AssertionError(f"{page.name}, line {block.line}: {error!r}") from error


def _run_block(block: Block, namespace: dict[str, Any]) -> None:
    absent = [name for name in block.declared.get("needs", "").split() if not has(name)]
    expected = block.declared.get("fails", "")
    if block.language == "python":
        code = compile("\n" * block.line + block.text, "<page>", "exec")
        if not absent and "file" not in block.declared:
            _run_python(code, namespace, expected)
    elif block.language in ("sh", "bash"):
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        if not absent and "file" not in block.declared:
            _run_shell(block.text, [int(code) for code in (expected or "0").split()])
    elif block.language == "cuda":
        is_header = block.declared.get("file", "x").endswith("h")
        if not block.declared.keys() & {"part", "needs"} and not is_header:
            import rtcompile

            rtcompile.compile(block.text, arch="sm_90a", options=["-std=c++17", "-I."])
    elif block.language == "toml":
        if sys.version_info >= (3, 11):
            import tomllib

            tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)
    else:
        known = ("text", "dockerfile", "yaml", "ipython", "c++", "mermaid", "")
        assert block.language in known or block.language.startswith("{"), block.language


def _run_python(code: CodeType, namespace: dict[str, Any], expected: str) -> None:
    try:
        exec(code, namespace)
    except Exception as error:
        if not expected or type(error).__name__ != expected:
            raise
    else:
        assert not expected, f"it does not raise {expected}"


def _run_shell(text: str, expected: list[int]) -> None:
    commands = text.replace("\\\n", " ").splitlines()
    commands = [line.partition("  #")[0] for line in commands if _RUN.match(line)]
    if not commands:
        return
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = "set -e\n" + "\n".join(commands)
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True)
    assert done.returncode in expected, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def has(name: str) -> bool:
    if name != "gpu":
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # its parent package is missing
            return False
    return doors.devices() > 0


class _Loaded:
    """A fake of a loaded module: its kernels are found, but not launched."""

    def __init__(self, code: bytes, names: dict[str, str]) -> None:
        from rtcompile import cubin

        self._symbols = {*cubin.kernel_symbols(code)}
        self.mapping = names

    def get_function(self, name: str) -> Any:
        symbol = self.mapping.get(name, name)
        assert symbol in self._symbols, f"there is no kernel {name} in {self._symbols}"
        return lambda grid, block, args, **more: None


def pretend() -> None:
    """Compile kernels for an H100 without launching them, and let CuPy's arrays be NumPy's."""
    from unittest import mock

    import cupy
    import numpy

    import rtcompile.frontends.lazy_code
    import rtcompile.frontends.raw_kernel
    from rtcompile.lookup import find as lookup

    def module(self: Any) -> _Loaded:
        code = self.object_code()
        return _Loaded(code.code, dict(code.lowered_names))

    def rebuild(self: Any, log_stream: Any = None) -> None:
        code = self.object_code()
        if log_stream is not None:
            log_stream.write(code.build.log)

    rtcompile.frontends.lazy_code.LazyCode.module = module
    rtcompile.frontends.lazy_code.LazyCode.rebuild = rebuild
    rtcompile.frontends.lazy_code.ordinal = rtcompile.frontends.raw_kernel.ordinal = (
        lambda loading=False: 0
    )
    rtcompile.frontends.lazy_code.current_device = rtcompile.frontends.raw_kernel.current_device = (
        lambda: 0
    )
    lookup.compute_capability = lambda: (9, 0)
    for name in (
        "empty",
        "empty_like",
        "zeros",
        "zeros_like",
        "ones",
        "arange",
        "asarray",
        "array",
    ):
        setattr(cupy, name, getattr(numpy, name))
    for name in ("abs", "random", "allclose", "linspace", "full", "sqrt"):
        setattr(cupy, name, getattr(numpy, name))
    cupy.asnumpy = numpy.asarray
    cupy.cuda.Stream = cupy.cuda.Device = cupy.cuda.Event = mock.MagicMock()


def run_each(pages: list[Path]) -> dict[str, str]:
    """Run pages in order, each in its own folder; return the failures by page."""
    failed = {}
    start = Path.cwd()
    for page in pages:
        folder = start / "-".join(page.relative_to(ROOT).with_suffix("").parts)
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        try:
            run(page)
        except AssertionError as error:
            failed[str(page.relative_to(ROOT))] = f"{error}"
    os.chdir(start)
    return failed


def main(pages: list[Path]) -> None:
    """Run each page in a forked child that has imported CuPy, and print the failures."""
    import cupy  # noqa: F401  # its import takes longer than most pages

    failed = {}
    for page in pages:
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            os.close(reads)
            with os.fdopen(writes, "w") as stream:
                json.dump(run_each([page]), stream)
            return  # the child ends as a program does
        os.close(writes)
        with os.fdopen(reads) as stream:
            output = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found = json.loads(output) if output else {str(page.relative_to(ROOT)): "no output"}
        failed |= found or (
            {str(page.relative_to(ROOT)): f"it ended with {status}"} if status else {}
        )
    print(json.dumps(failed))


if __name__ == "__main__":
    if sys.argv[1] == "--together":
        print(json.dumps(run_each([Path(page).resolve() for page in sys.argv[2:]])))
    else:
        main([Path(page).resolve() for page in sys.argv[1:]])
