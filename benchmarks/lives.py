"""What stays in a process after 1,000 builds, in each of the lives that a process can lead: threads, descriptors,
children, files and memory. ``python -m benchmarks.lives [--save] [--builds N]``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import _frozen, _machine

# `life(numbers)` builds a kernel for each number, all of them anew.
PROGRAM = """if True:
    import sys
    few, count = map(int, sys.argv[1:])
    IMPORTS
    import gc, json, os, time
    import rtcompile

    def request(number):
        source = f'extern "C" __global__ void k(int* p) {{ *p = {number}; }}'
        return rtcompile.CompileRequest(source, arch="sm_80", backend="nvrtc")

    def build(number):
        return len(rtcompile.compile(request(number).source, arch="sm_80", backend="nvrtc").code)

    LIFE

    def state():
        gc.collect()
        with open("/proc/self/status") as file:
            resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
        tasks = os.listdir("/proc/self/task")
        children = [open(f"/proc/self/task/{task}/children").read().split() for task in tasks]
        temporary = sum(len(files) + len(folders) for _, folders, files in os.walk(os.environ["TMPDIR"]))
        return {
            "threads": len(tasks),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "children": sum(map(len, children)),
            "temporary files": temporary,
            "resident MB": round(resident / 1e3),
        }

    before = state()
    life(range(few))
    early = state()
    life(range(few, count))
    late, tries = state(), 50
    while tries and any(late[name] > early[name] for name in late if name != "resident MB"):
        time.sleep(0.1)  # a worker may be clearing up after the last build
        late, tries = state(), tries - 1
    print(json.dumps([before, early, late]))
"""
LIVES = {  # the life's imports, and its function
    "plain": ("", "def life(numbers): [*map(build, numbers)]"),
    "a new thread for each build": (
        "import threading",
        """def life(numbers):
        for first in numbers[::8]:
            threads = [threading.Thread(target=build, args=[n]) for n in range(first, min(first + 8, numbers.stop))]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]""",
    ),
    "gevent": (
        "from gevent import monkey; monkey.patch_all(); from gevent.pool import Pool",
        "def life(numbers): [*Pool(8).imap(build, numbers)]",
    ),
    "asyncio": (
        "import asyncio",
        """def life(numbers):
        async def main():
            futures = rtcompile.submit_many([*map(request, numbers)])
            await asyncio.gather(*map(asyncio.wrap_future, futures))
        asyncio.run(main())""",
    ),
    "forked children, of 10 builds each": (
        "",
        """def life(numbers):
        for first in numbers[::10]:
            child = os.fork()
            if not child:
                [*map(build, range(first, first + 10))]
                sys.exit()
            assert not os.waitpid(child, 0)[1]""",
    ),
    "batches of 100": (
        "",
        """def life(numbers):
        for first in numbers[::100]:
            rtcompile.compile_many([request(n) for n in range(first, min(first + 100, numbers.stop))], progress=False)""",
    ),
}
FROZEN = "plain, in a frozen application"
LIVES[FROZEN] = LIVES["plain"]


def few(builds: int) -> int:
    """Return after how many of the builds the first state is taken: every worker and thread has started by then."""
    return max(builds // 10, 16)


def lived(life: str, builds: int) -> list[dict[str, int]]:
    """Return the state before any build, after a few of them, after all, and after the process's end."""
    imports, function = LIVES[life]
    program = PROGRAM.replace("IMPORTS", imports).replace("LIFE", function)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cache", "tmp"):
            Path(folder, name).mkdir(0o700)
        environ = {
            **os.environ,
            "RTCOMPILE_CACHE_DIR": str(Path(folder, "cache")),
            "TMPDIR": str(Path(folder, "tmp")),
        }
        command = [sys.executable, "-c", program]
        if life == FROZEN:
            app = Path(folder, "app.py")
            app.write_text(program)
            command = [_frozen.pyinstaller(app, _frozen.stated("pyinstaller"))]
        done = subprocess.run(
            [*command, str(few(builds)), str(builds)],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            cwd=_machine.ROOT,
        )
        if done.returncode or done.stderr:
            raise RuntimeError(f"{life}: {done.stderr}")
        states: list[dict[str, int]] = json.loads(done.stdout)
        unfinished = Path(folder, "cache").rglob("*.tmp")
        return [*states, {"temporary files": len([*Path(folder, "tmp").iterdir(), *unfinished])}]


def main() -> None:
    builds = int(sys.argv[sys.argv.index("--builds") + 1]) if "--builds" in sys.argv else 1_000
    moments = ("before", f"after {few(builds)}", f"after {builds}", "after its end")
    _machine.save(
        "lives", {life: dict(zip(moments, lived(life, builds), strict=True)) for life in LIVES}
    )


if __name__ == "__main__":
    main()
