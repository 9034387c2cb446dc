"""Writes the first lines of typical mistakes' errors in Python, at the command and in a notebook cell.

`python -m benchmarks.mistakes` writes docs/mistakes.md and docs/mistakes-whole.md.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import rtcompile
from rtcompile.cli import main as command
from tests.mistakes import FORTY, MISTAKES, Mistake, pretended_device

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "mistakes.md"
WHOLE = DOCUMENT.with_name("mistakes-whole.md")
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")


def in_python(mistake: Mistake) -> str:
    """Return the message of the exception."""
    try:
        with pretended_device():
            mistake.module().get_function(mistake.kernel)
    except rtcompile.RtcompileError as error:
        return str(error)
    return ""


def at_the_command(mistake: Mistake) -> str:
    """Return what `rtcompile compile` writes to stderr."""
    names = [word for name in mistake.names for word in ("-n", name)]
    limit = ["--timeout", str(mistake.timeout)] if mistake.timeout else []
    arguments = ["compile", "kernel.cu", "--arch", mistake.arch, *names, *limit]
    arguments += ["--backend", "nvrtc", "--", *mistake.options]
    output = io.StringIO()
    with (
        _folder(mistake.source) as folder,
        contextlib.redirect_stderr(output),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        command(arguments)
    return output.getvalue().rstrip("\n").replace(f"{folder}{os.sep}", "")


def in_a_cell(mistake: Mistake) -> str:
    """Return what IPython prints below a ``%%cuda`` cell."""
    names = " ".join(f"-n '{name}'" for name in mistake.names)
    line = " ".join([f"--arch {mistake.arch}", names, *mistake.options])
    limit = {"RTCOMPILE_TIMEOUT": str(mistake.timeout)} if mistake.timeout else {}
    limit["RTCOMPILE_FALLBACK"] = "never"
    output = io.StringIO()
    with mock.patch.dict(os.environ, limit), contextlib.redirect_stdout(output):
        _shell().run_cell(f"%%cuda {line}\n{mistake.source}")
    return _ESCAPE.sub("", output.getvalue()).rstrip("\n")


FRONTENDS = {"Python": in_python, "command": at_the_command, "cell": in_a_cell}


def document() -> str:
    """Return docs/mistakes.md."""
    lines = [
        "# Typical mistakes, and their first lines",
        "",
        "Written by `python -m benchmarks.mistakes` from `tests/mistakes.py`: the first line that is",
        "shown in Python, by `rtcompile compile kernel.cu`, and below a `%%cuda` cell (whose first line",
        "is that of the magic). The lines after it have the source's line, a hint where one is known,",
        "and the further errors. [Forty more](mistakes-whole.md) are shown whole.",
    ]
    for mistake in MISTAKES:
        arguments = [
            f"--arch {mistake.arch}",
            *(f"-n '{n}'" for n in mistake.names),
            *mistake.options,
        ]
        lines += ["", f"## {mistake.name}", "", "```cuda", mistake.source.rstrip(), "```"]
        called = f", and `get_function({mistake.kernel!r})`" if mistake.compiles else ""
        lines += ["", f"`{' '.join(arguments)}`{called}", "", "| | first line |", "|---|---|"]
        for frontend, render in frontends_of(mistake).items():
            first = render(mistake).partition("\n")[0].replace("|", r"\|")
            lines.append(f"| {frontend} | `{first}` |")
    return "\n".join(lines) + "\n"


def whole() -> str:
    """Return docs/mistakes-whole.md."""
    lines = ["---", "orphan: true", "---", "", "# Forty whole messages", ""]
    lines += [
        "Forty mistakes in CuTe, CUB, templates and plain C++, and what Python shows of each."
    ]
    for mistake in FORTY:
        arguments = [*(f"-n '{n}'" for n in mistake.names), *mistake.options]
        language = "cuda" if mistake.source.isascii() else "text"  # quotes that no lexer takes
        lines += [
            "",
            f"## {mistake.name}",
            "",
            f"```{language}",
            mistake.source.rstrip(),
            "```",
            "",
        ]
        lines += [f"With `{' '.join(arguments)}`:", ""] if arguments else []
        lines += ["```text", portable(in_python(mistake)), "```"]
    return "\n".join(lines) + "\n"


def frontends_of(mistake: Mistake) -> dict[str, Callable[[Mistake], str]]:
    """Return the frontends in which a mistake occurs: only Python requests a kernel of a module by its name."""
    return {"Python": in_python} if mistake.compiles else FRONTENDS


def portable(message: str) -> str:
    """Return a message without what differs between machines and runs."""
    message = re.sub(r"/\S*/include/", "", message)
    message = re.sub(r"\n(?:Cached|Then|NVCC|Reproducer)[^\n]*", "", message)
    return re.sub(r"(NVRTC|nvcc) \d+\.\d+\.\d+", r"\1", message)


@contextlib.contextmanager
def _folder(source: str) -> Iterator[str]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("kernel.cu").write_text(source, encoding="utf-8")
            yield os.path.realpath(folder)
        finally:
            os.chdir(before)


@functools.cache
def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "rtcompile")
    return shell


def main() -> None:
    DOCUMENT.write_text(document(), encoding="utf-8")
    WHOLE.write_text(whole(), encoding="utf-8")


if __name__ == "__main__":
    main()
