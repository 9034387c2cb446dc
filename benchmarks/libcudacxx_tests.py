"""Compiles the tests of libcu++ by rtcompile and by NVRTC alone, and compares verdicts and code.

``python -m benchmarks.libcudacxx_tests CCCL [--every 60 [--first 30]] [--processes 16] [--arch 90] [--std c++20]
[--seconds 200] [--minutes 8] [--lines FILE] [--save]``: CCCL is a checkout of NVIDIA/cccl, with dlpack's in CCCL/dlpack.

Each test is compiled as upstream's ``nvrtcc`` does (libcudacxx/test/utils/nvidia/nvrtc): a kernel that
calls the test's ``main`` precedes the test, the options are those of upstream's lit configuration, and its
keywords are honoured (REQUIRES, UNSUPPORTED, ADDITIONAL_COMPILE_DEFINITIONS). Nothing is run on a device.
NVRTC alone gets the two options that `rtcompile.compile` adds as CuPy does. A process of each side
compiles one test after the other, and is replaced if it dies. At the time limit all end. --lines writes each
test's outcome to a file at once. Tests in this file are not compiled again, so a run can be continued.
--after N skips the first N tests, for an earlier run whose file was lost; the order is the same in every run.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

SUFFIXES = (".pass.cpp", ".fail.cpp", ".runfail.cpp", ".sh.cpp")  # of upstream's lit.cfg
SIDES = ("plain", "ours")
NO_REPLY = "the process died, or ended at the time limit of one compile"
FAKE_MAIN = """
__host__ __device__ int fake_main(int argc, char ** argv);
#define main fake_main

// extern "C" to stop the name from being mangled
extern "C" __global__ void main_kernel() {
    fake_main(0, nullptr);
}
"""
KEYWORD = re.compile(r"\b(REQUIRES|UNSUPPORTED|XFAIL|ADDITIONAL_COMPILE_DEFINITIONS):(.*)")
# What NVRTC makes of names with internal linkage: they begin with a hash, of this process if there is no seed.
INTERNAL = re.compile(rb"(?<=_INTERNAL_)[0-9a-f]{8}|(?<=_GLOBAL__N__)[0-9a-f]{8}")

# --- upstream's rules ----------------------------------------------------------------------------


def features_of(arch: int, std: str) -> set[str]:
    """Return what upstream's lit configuration calls available for NVRTC."""
    found = {"nvrtc", "nvrtcc-1", "nvrtcc-1.1", "nvrtcc-1.1.1", "libc++", std}
    found |= {"libcpp-no-exceptions", "libcpp-no-rtti"}
    found |= {f"pre-sm-{other}" for other in (32, 60, 70, 80, 90) if arch < other}
    return found | ({"pre-sm-90a"} if arch <= 90 else set())


def is_met(expression: str, features: set[str]) -> bool:
    """Evaluate a boolean expression of lit: names, ``!``, ``&&``, ``||`` and parentheses."""
    words = re.findall(r"&&|\|\||[!()]|[-+=.\w]+|\S", expression)
    python = {"&&": "and", "||": "or", "!": "not", "(": "(", ")": ")"}
    known = {"true", "*", *features}
    return bool(eval(" ".join(python.get(word, str(word in known)) for word in words)))


class Test:
    """One test: its text, its macros, and the reason if it is not compiled.

    `should_compile` is None if upstream knows that the test fails, be it only when it runs.
    """

    def __init__(self, path: Path, features: set[str]) -> None:
        self.path = path
        self.source = path.read_bytes().decode()
        self.macros: list[str] = []
        self.should_compile: bool | None = not path.name.endswith(".fail.cpp")
        self.skipped = "a script of lit (.sh.cpp)" if path.name.endswith(".sh.cpp") else ""
        for keyword, value in KEYWORD.findall(self.source):
            for part in (part.strip() for part in value.split(",") if part.strip()):
                if keyword == "ADDITIONAL_COMPILE_DEFINITIONS":
                    self.macros.append(f"-D{part}")
                elif keyword == "XFAIL":
                    self.should_compile = None if is_met(part, features) else self.should_compile
                elif is_met(part, features) == (keyword == "UNSUPPORTED"):
                    self.skipped = self.skipped or f"{keyword}: {part}"


def options_of(test: Test, checkout: Path, toolkit: list[str], arch: int, std: str) -> list[str]:
    """Return the options that upstream's lit configuration and nvrtcc give to NVRTC, in their order."""
    library = checkout / "libcudacxx"
    return [
        f"-std={std}",
        f"--pre-include={library}/test/support/nasty_macros.h",
        *(f"-I{folder}" for folder in (library / "include", checkout / "thrust", checkout / "cub")),
        *(f"-D__STDC_{what}_MACROS" for what in ("FORMAT", "LIMIT", "CONSTANT")),
        f"-I{library}/test/support",
        "-D_CCCL_NO_SYSTEM_HEADER",
        *(f"-I{folder}" for folder in toolkit),
        "-device-int128",
        "-DCCCL_ENABLE_ASSERTIONS",
        f"-I{checkout}/dlpack/include",
        "-DCCCL_IGNORE_DEPRECATED_CPP_DIALECT",
        "-DLIBCUDACXX_IGNORE_DEPRECATED_ABI",
        *test.macros,
        f"-I{test.path.parent}",
        *(["-device-float128"] if arch >= 100 else []),
    ]


# --- a process of one side ------------------------------------------------------------------------


def serve(side: str, arch: int) -> None:
    """Compile the tasks on standard input, one per line, and write the code to each task's file."""
    compiled = _by_rtcompile(arch) if side == "ours" else _by_nvrtc(arch)
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        begin = time.perf_counter()
        code, log = compiled(task["source"], task["name"], task["options"])
        seconds = time.perf_counter() - begin
        Path(task["to"]).write_bytes(code or b"")
        print(json.dumps({"ok": code is not None, "log": log, "seconds": seconds}), flush=True)


def _by_rtcompile(arch: int) -> Any:
    import rtcompile

    def compiled(source: str, name: str, options: list[str]) -> tuple[bytes | None, str]:
        try:
            code = rtcompile.compile(
                source, options=options, arch=f"sm_{arch}", name=name, fallback="never"
            )
        except rtcompile.CompileError as error:
            return None, getattr(error, "log", "") or str(error)
        return code.code, ""

    return compiled


def _by_nvrtc(arch: int) -> Any:
    from rtcompile import toolkit
    from tests.plain_nvrtc import PlainNvrtc

    nvrtc = PlainNvrtc(Path(toolkit.current().require_nvrtc().path).parent)
    own = (f"--gpu-architecture=sm_{arch}", "-ftz=true", "-default-device")

    def compiled(source: str, name: str, options: list[str]) -> tuple[bytes | None, str]:
        outcome = nvrtc.compile(source, *options, *own, name=name)
        return outcome.code, "" if outcome.code else outcome.log

    return compiled


class Child:
    """A process of one side, started when there is something to compile."""

    def __init__(self, side: str, given: argparse.Namespace, folder: Path) -> None:
        self._seconds = given.seconds
        self._command = [sys.executable, "-m", "benchmarks.libcudacxx_tests", "--serve", side]
        self._command += ["--arch", str(given.arch)]
        self._environ = {
            **os.environ,
            "RTCOMPILE_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def compile(self, task: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, env=self._environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            if self._line(self._seconds) != b"ready\n":
                raise RuntimeError(f"this process does not begin: {self._command}")
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        self._process.stdin.flush()
        line = self._line(self._seconds)
        if line:
            return dict(json.loads(line))
        self.end()
        return {"ok": False, "log": NO_REPLY, "seconds": self._seconds}

    def _line(self, seconds: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline() if ready else b""

    def end(self, seconds: float = 0) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


# --- the runner -----------------------------------------------------------------------------------


def one(test: Test, options: list[str], children: dict[str, Child], folder: Path) -> dict[str, Any]:
    """Compile a test on both sides, and compare."""
    outcome: dict[str, Any] = {"should compile": test.should_compile}
    codes = {}
    for side, child in children.items():
        file = folder / f"{threading.get_ident()}.{side}"
        task = {"source": FAKE_MAIN + test.source, "name": str(test.path), "options": options}
        reply = child.compile({**task, "to": str(file)})
        outcome[side] = reply["ok"]
        outcome[f"{side} seconds"] = round(reply["seconds"], 3)
        if not reply["ok"]:
            outcome[f"{side} says"] = _first_error(reply["log"])
        codes[side] = file.read_bytes() if reply["ok"] else b""
    outcome["code"] = _compared(codes["plain"], codes["ours"])
    return outcome


def _compared(plain: bytes, ours: bytes) -> str:
    if plain == ours:
        return "same bytes"
    if INTERNAL.sub(b"", plain) == INTERNAL.sub(b"", ours):
        return "same but for the hashes in internal names"
    texts = [_instructions(code) for code in (plain, ours)]
    return "same instructions" if texts[0] == texts[1] else "different"


def _instructions(code: bytes) -> dict[str, bytes]:
    from rtcompile.cubin import _Elf

    elf = _Elf(code) if code else None
    return {n: elf.section(n) for n in elf.names if n.startswith(".text")} if elf else {}


def _first_error(log: str) -> str:
    lines = [line for line in log.splitlines() if "error" in line]
    return (lines or log.splitlines() or [""])[0][-300:]


class Run:
    """Compiles tests in an order of which each part is a sample, and has the outcomes by test."""

    def __init__(self, tests: dict[str, Test], given: argparse.Namespace, deadline: float) -> None:
        self._tests = tests
        self._given = given
        self._deadline = deadline
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._failures: list[BaseException] = []
        self.outcomes: dict[str, Any] = {}
        if given.lines is not None and given.lines.exists():
            lines = given.lines.read_text().splitlines()
            self.outcomes = {name: o for name, o in map(json.loads, lines) if name in tests}
        order = list(tests)
        random.Random(0).shuffle(order)
        for name in order[given.after :]:
            if name not in self.outcomes:
                self._waiting.put(name)

    def all(self) -> dict[str, Any]:
        """Return the outcomes of the tests that ended before the time limit."""
        from rtcompile import toolkit

        folders = [d.path for d in toolkit.current().search if d.label in ("cudart", "crt")]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            threads: list[threading.Thread] = []
            children: list[Child] = []
            for _ in range(self._given.processes):
                two = {side: Child(side, self._given, Path(folder)) for side in SIDES}
                children += two.values()
                threads.append(
                    threading.Thread(target=self._work, args=(two, folders, Path(folder)))
                )
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0, self._deadline - time.monotonic()))
            for _ in range(2):  # a thread may have started one meanwhile
                for child in children:
                    child.end(seconds=0 if self._is_over() else 5)
                for thread in threads:
                    thread.join()
        if self._failures:
            raise self._failures[0]
        return self.outcomes

    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def _work(self, children: dict[str, Child], folders: list[str], folder: Path) -> None:
        given = self._given
        while not self._is_over() and not self._failures:
            try:
                name = self._waiting.get_nowait()
            except queue.Empty:
                return
            options = options_of(self._tests[name], given.checkout, folders, given.arch, given.std)
            try:
                outcome = one(self._tests[name], options, children, folder)
            except BaseException as error:  # at the time limit its process was ended
                if not self._is_over():
                    self._failures.append(error)
                return
            if self._is_over():
                return
            self.outcomes[name] = outcome
            if given.lines is not None:
                with given.lines.open("a") as file:
                    file.write(json.dumps([name, outcome]) + "\n")


def summary(outcomes: dict[str, Any], skipped: dict[str, str]) -> dict[str, Any]:
    """Return what the outcomes come to, and list all that differ."""
    same = {name: o for name, o in outcomes.items() if o["plain"] == o["ours"]}
    seconds = {side: round(sum(o[f"{side} seconds"] for o in outcomes.values())) for side in SIDES}
    unexpected = [name for name, o in same.items() if o["should compile"] is (not o["plain"])]
    return {
        "tests": len(outcomes) + len(skipped),
        "skipped by upstream's rules": dict(Counter(skipped.values()).most_common()),
        "compiled on both sides, or on neither": len(outcomes),
        "same verdict": len(same),
        "of these compiled": sum(o["plain"] for o in same.values()),
        "of these rejected for the same first error": sum(
            not o["plain"] and o["plain says"] == o["ours says"] for o in same.values()
        ),
        "of these not as the name of the test says": len(unexpected),
        "code of those compiled": dict(Counter(o["code"] for o in same.values() if o["plain"])),
        "seconds in sum": seconds,
        "without an answer": sorted(
            n for n, o in outcomes.items() if NO_REPLY in (o.get("plain says"), o.get("ours says"))
        ),
        "different verdict": {n: o for n, o in sorted(outcomes.items()) if n not in same},
        "different code": {
            n: o["code"] for n, o in sorted(same.items()) if o["code"] != "same bytes"
        },
        "not as named": {n: same[n].get("plain says", "it compiled") for n in sorted(unexpected)},
    }


def main() -> None:
    from benchmarks import _machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, nargs="?")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--std", default="c++20")
    parser.add_argument(
        "--seconds", type=float, default=200, help="for one compile (upstream's 200)"
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--lines", type=Path)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.arch)
        return
    begin = time.monotonic()
    given.checkout = given.checkout.resolve()
    root = given.checkout / "libcudacxx/test/libcudacxx"
    features = features_of(given.arch, given.std)
    files = (path for path in root.rglob("*.cpp") if path.name.endswith(SUFFIXES))
    tests = {str(path.relative_to(root)): Test(path, features) for path in sorted(files)}
    names = list(tests)[given.first :: given.every]
    skipped = {name: tests[name].skipped for name in names if tests[name].skipped}
    left = {name: tests[name] for name in names if name not in skipped}
    outcomes = Run(left, given, begin + 60 * given.minutes).all()
    facts = {
        "arch": given.arch,
        "std": given.std,
        "processes": given.processes,
        "minutes of this run": round((time.monotonic() - begin) / 60, 2),
        "left out at the beginning": given.after,
        "not reached": len(names) - len(skipped) - len(outcomes) - given.after,
    }
    _machine.save("libcudacxx_tests", {**facts, **summary(outcomes, skipped)})


if __name__ == "__main__":
    main()
