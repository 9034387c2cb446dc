"""Runs a program in a worker with given files; returns its status and files. Worker side."""

from __future__ import annotations

import os
import time

from rtcompile.workers import protocol


def run(job: dict[str, object]) -> dict[str, object]:
    """Run one program in the job's empty folder.

    Takes ``command`` (its first word is the program's path), ``environ``, ``files`` to write before
    (name to bytes) and ``results``, the names of files to read after. Returns ``error`` ("" unless
    the program could not be started), ``status`` (minus the signal that ended it), ``log`` (its
    stdout and stderr as they were interleaved), ``files`` (those of the results that exist) and
    ``seconds``.
    """
    begin = time.monotonic()
    files: dict[str, bytes] = job["files"]  # type: ignore[assignment]
    for name, data in files.items():
        if os.path.dirname(name):
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(data)
    command: list[str] = job["command"]  # type: ignore[assignment]
    temporary = os.path.abspath(os.environ["TMPDIR"])  # a program may change its directory
    environ: dict[str, str] = {**job["environ"], "TMPDIR": temporary}  # type: ignore[dict-item]
    try:
        pid = os.posix_spawn(
            command[0], command, environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)]
        )
    except OSError as error:
        return {"error": str(error), "status": None, "log": "", "files": {}, "seconds": 0.0}
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    results: list[str] = job["results"]  # type: ignore[assignment]
    return {
        "error": "",
        "status": status,
        "log": protocol.stderr_text().decode("utf-8", "replace"),
        "files": {name: _read(name) for name in results if os.path.exists(name)},
        "seconds": time.monotonic() - begin,
    }


def _read(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()
