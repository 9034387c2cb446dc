"""Requests kernels through any door in another process, which lives as long as a test needs it.

``python -m tests.kernel_process`` reads a request from each line of its input, as JSON, and prints a reply line
for each. `Process` is the client.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests import doors

ROOT = Path(__file__).parents[1]


class Process:
    """A process that requests kernels through doors as long as the test needs it."""

    def __init__(self, *, cupy: bool = True, cwd: Path | None = None, **environ: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernel_process", "cupy" if cupy else ""],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def request(self, name: str, source: str, options: Any = (), /, **more: Any) -> bytes:
        """Return the code from a door; raise `RequestError` if the door raises an error."""
        return self.finish(self.start(name, source, options, **more))

    def start(self, name: str, source: str, options: Any = (), /, **more: Any) -> None:
        """Begin a request, as `request` does; `finish` waits for the reply."""
        assert self._process.stdin is not None
        kind = type(options).__name__
        line = json.dumps([name, source, kind, options, more])
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def finish(self, started: None = None) -> bytes:
        """Return the reply to the request that `start` began."""
        line = self._process.stdout.readline()
        assert line, f"the process ended: {self._process.wait()}"
        kind, text = json.loads(line)
        if kind:
            raise RequestError(kind, text)
        return bytes.fromhex(text)

    def count(self, name: str, source: str, options: Any = (), /, **more: Any) -> list[int]:
        """Request a kernel; return the numbers of functions, modules and calls of rtcompile that it used."""
        return list(json.loads(self.request("count", source, options, **more, door=name)))

    def run(self, statement: str) -> None:
        """Run Python in the process: ``os.chdir("/")``."""
        self.request("run", statement)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RequestError(Exception):
    """The error that a door raised: the name of its class, and its text."""


def text_in(code: bytes) -> str:
    """Return the value of the string in a kernel's code that begins with ``TEXT:``."""
    [found] = set(re.findall(rb"TEXT:([^\0]*)\0", code))
    return str(found.decode())


def _serve(cupy: bool) -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # a cell prints its module
    if cupy and not doors.devices():
        doors.pretend_device()
    opened: dict[str, Any] = {}
    for line in sys.stdin:
        name, source, kind, options, more = json.loads(line)
        options = tuple(options) if kind == "tuple" else options
        try:
            if name == "run":
                exec(source, {"os": os, "sys": sys})
                reply = ["", ""]
                continue
            if "link" in more:
                more["link"] = list(map(Path, more["link"]))  # a str would be a source
            counted = name == "count"
            name = more.pop("door") if counted else name
            if name not in opened:
                opened[name] = doors.door(name)
            build = functools.partial(opened[name], source, options, **more)
            found = json.dumps(doors.passed(build)).encode() if counted else build()
            reply = ["", found.hex()]
        except Exception as error:
            reply = [type(error).__name__, str(error)]
        finally:
            print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1] == "cupy")
