"""Gives back the leases of a process that ended by a signal, by `os._exit` or by a crash.

A small shell waits for the process to end. If the process still has a lease then, the shell starts Python,
which releases it. Each process that compiles beside a shared store starts one such shell.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress

# Lines are leases. A line with a dot clears the list; what is in the list at the end is released.
_SCRIPT = r"""told=
while IFS= read -r line; do
  case $line in .) told= ;; *) told="$told$line
" ;; esac
done
[ -n "$told" ] && printf %s "$told" | "$@"
"""
_PROGRAM = (
    "import sys; sys.path[0] = sys.argv[1]; from rtcompile.store import orphans; orphans.main()"
)


class Helper:
    """The shell of one process, started with its first lease."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: set[tuple[str, str]] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def hold(self, place: str, token: str) -> None:
        """Note that this process holds a lease."""
        with self._guard, suppress(OSError):
            if self._process is None:
                self._start()
            self._held.add((place, token))
            self._say(f"{place} {token}\n")

    def release(self, place: str, token: str) -> None:
        """Note that it holds the lease no more."""
        with self._guard, suppress(OSError):
            self._held.discard((place, token))
            lines = [f"{each} {own}\n" for each, own in self._held]
            self._say("".join([".\n", *lines]))

    def close(self) -> None:
        """End the shell; if a lease is held still, it is given back."""
        if self._process is None or os.getpid() != self._owner:
            return
        with self._guard, suppress(OSError):
            process, self._process = self._process, None
            if not self._held:
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
            if not self._held:
                process.wait()
            process.returncode = process.returncode or 0

    def __del__(self) -> None:
        with suppress(Exception):  # modules may be gone at the interpreter's end
            self.close()

    def forget(self) -> None:
        """Leave the shell to the parent, in a child of fork."""
        process, self._process = self._process, None
        self._held, self._guard = set(), threading.Lock()
        if process is not None:
            process.returncode = 0
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()

    def _start(self) -> None:
        above = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        command = ["/bin/sh", "-c", _SCRIPT, "sh", sys.executable, "-c", _PROGRAM, above]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=nothing,
            stderr=nothing,
            bufsize=0,
            cwd="/",
            start_new_session=True,  # it outlives a signal to the process's group
        )

    def _say(self, lines: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(lines.encode())
