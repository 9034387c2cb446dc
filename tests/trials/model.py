"""A random program against a model: after each step, every process gets what a fresh build gives.

A world is a folder of headers and some kernels. A step changes the folder, or asks while it changes;
then one process, another that lives as long, and a new one ask for a kernel, in any order. The model is
NVRTC itself, called with the same options and nothing of ours. A kernel's code says in a string which
header gave what.

``python -m tests.trials.model FOLDER PLACE SEED WORLDS STEPS`` prints one line of JSON: the number of
steps and answers, and the worlds that went wrong, with the fewest steps that show it. A world's steps
follow from its seed alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.asking import AskedError, Process, answer_of
from tests.trials.trees import FOLDERS, NAMES, Folder, make_images, may_mount, mount
from tests.unit.conftest import PlainNvrtc

PATHS = [f"{folder}/{name}" for folder in FOLDERS for name in NAMES]
TAIL = "".join(f'\n#ifndef M{i}\n#define M{i} "-"\n#endif' for i in range(len(NAMES))) + (
    '\nextern "C" __device__ const char answer[] = "ANSWER:" '
    + " ".join(f"M{i}" for i in range(len(NAMES)))
    + ';\nextern "C" __global__ void k(char* p) { *p = answer[threadIdx.x]; }\n'
)
SHRINK_SECONDS = 60.0

# Ways to include X if there is one. {n} is a number, for macros of its own.
INCLUDES = (
    "#if __has_include({x})\n#include {x}\n#endif",
    "#if __has_include( /* c */ {x})\n#include {x}\n#endif",
    "#if __has_include /**/ ({x})\n#include {x}\n#endif",
    "#if __has_\\\ninclude(\\\n{x})\n#include {x}\n#endif",
    "#if\f__has_include(\f{x})\n#include\f{x}\n#endif",
    "#define HAS{n}(a, b) __has_include(b)\n#if HAS{n}(<none>, {x})\n#include {x}\n#endif",
    "#define CAT{n}(a, b) a##b\n#if CAT{n}(__ha,s_include)({x})\n#include {x}\n#endif",
    "#define Q{n} {x}\n#if __has_include(Q{n})\n#include Q{n}\n#endif",
    "#ifdef __has_include\n#if !__has_include({x})\n#else\n#include {x}\n#endif\n#endif",
    "#if 0\n#elif __has_include({x})\n# /*\n*/ include {x}\n#endif",
    "#if __has_include({x})\n%:include /*\n*/ {x}\n#endif",
    "#if __has_include_next({x})\n#include_next {x}\n#endif",
    "#include {x}",
)
# The last of them is an error where there is none.
_USUAL = (20,) + (3,) * (len(INCLUDES) - 2) + (1,)


class Step(NamedTuple):
    """What is changed, which kernel is asked for then, and by whom first."""

    change: list[Any]
    kernel: int
    order: list[str]
    door: str


class Kernel(NamedTuple):
    """A source, options without a place, and the working directory."""

    source: str
    options: list[str]
    folder: str


class Failure(NamedTuple):
    """The answer that was wrong: who gave it after which step, and what a fresh build gives."""

    step: int
    who: str
    got: str
    expected: str


# --- what is random ------------------------------------------------------------------------------


def plan(seed: int, count: int, mounts: bool) -> tuple[list[Kernel], list[Step]]:
    """Return a world's kernels, and its steps."""
    chance = random.Random(seed)
    kernels = [_kernel(chance, number) for number in range(4)]
    steps = [_step(chance, number, kernels, mounts) for number in range(count)]
    return kernels, steps


def _kernel(chance: random.Random, number: int) -> Kernel:
    options = []
    for folder in chance.sample(FOLDERS, chance.randint(2, 5)):
        spelled = chance.choice(("{root}/%s", "{root}/%s/", "{root}/d2/../%s", "%s", "./%s"))
        options.append("-I" + spelled % folder)
    if chance.random() < 0.2:
        options.append("-include={root}/d0/a.h")
    names = chance.sample(range(len(NAMES)), chance.randint(2, len(NAMES)))
    lines = [_include(chance, name) for name in names]
    if chance.random() < 0.2:
        options.append("-DASK=__has_include(<b.h>)")
        lines.append("#if ASK\n#include <b.h>\n#endif")
    return Kernel("\n".join([f"// {number}", *lines]) + TAIL, options, chance.choice(("", "d1")))


def _include(chance: random.Random, name: int) -> str:
    quotes = chance.choice(("<%s>", '"%s"'))
    [spelling] = chance.choices(INCLUDES, _USUAL)
    return spelling.format(x=quotes % NAMES[name], n=chance.randrange(10**9))


def _text(chance: random.Random, name: int) -> str:
    """Return a header: a macro of a number, and maybe other headers."""
    lines = [_include(chance, i) for i in range(name + 1, len(NAMES)) if chance.random() < 0.2]
    number = chance.randrange(1000, 9999)
    lines += [f"#ifndef M{name}", f'#define M{name} "{number}"', "#endif"]
    return "\n".join(lines) + "\n"


def _step(chance: random.Random, number: int, kernels: list[Kernel], mounts: bool) -> Step:
    order = ["same", "other", "new"]
    chance.shuffle(order)
    door = chance.choice(("compile", "RawKernel", "RawModule", "install"))
    kernel = chance.randrange(len(kernels))
    # Mostly of what the kernel looks at.
    folders = [f for f in FOLDERS if any(f in option for option in kernels[kernel].options)]
    change = _change(chance, folders if chance.random() < 0.8 else list(FOLDERS), mounts)
    if change[0] != "twice" and chance.random() < 0.2:
        change = ["during", chance.random(), change]
    return Step(change, kernel, order, door)


def _change(chance: random.Random, looked_at: list[str], mounts: bool) -> list[Any]:
    name = chance.randrange(len(NAMES))
    path = f"{chance.choice(looked_at)}/{NAMES[name]}"
    folders = [chance.choice(looked_at), chance.choice(FOLDERS)]
    text = _text(chance, name)
    changes: list[tuple[int, list[Any]]] = [
        (8, ["write", path, text]),
        (8, ["number", path, str(chance.randrange(1000, 9999))]),
        (5, ["number and time", path, str(chance.randrange(1000, 9999))]),
        (4, ["twice", path, *(str(chance.randrange(1000, 9999)) for _ in range(2))]),
        (4, ["number by rename", path, str(chance.randrange(1000, 9999))]),
        (5, ["remove", path]),
        (3, ["folder", path]),
        (3, ["move", path, chance.choice(PATHS)]),
        (3, ["link", path, chance.choice(PATHS)]),
        (2, ["hard link", path, chance.choice(PATHS)]),
        (2, ["swap", *folders]),
        (2, ["move", *folders]),
        (2, ["link", *folders]),
        (1, ["remove", folders[0]]),
        (2, ["copy", *folders]),
        (2, ["touch", path]),
        (2, ["wait", 0.01]),
    ]
    if mounts:
        changes += [(2, ["bind", *folders]), (2, ["mount", folders[0]]), (4, ["unmount", ""])]
        changes += [(3, ["image", folders[0], chance.choice(("1111", "2222"))])]
    [change] = chance.choices([c for _, c in changes], [weight for weight, _ in changes])
    return change


# --- what is done --------------------------------------------------------------------------------


class Players:
    """The processes that ask, and NVRTC, which is asked what is right."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._new: list[Process] = []
        os.environ["RTCOMPILE_CACHE_DIR"] = str(folder / "cache")
        self.images = folder / "images"
        make_images(self.images)
        spec = importlib.util.find_spec("nvidia")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        self._nvrtc = PlainNvrtc(Path(spec.submodule_search_locations[0]) / "cuda_nvrtc")
        empty = folder / "empty"
        empty.mkdir(exist_ok=True)
        os.chdir(empty)  # where NVRTC looks too
        self.live = {"same": Process(cupy=False), "other": Process()}
        self._ready()

    def _ready(self) -> None:
        """Start the next new process, which does nothing of ours before it is asked."""
        self._new.append(Process(cupy=False))

    def ask(self, who: str, kernel: Kernel, root: Path, door: str) -> str:
        process = self.start(who, kernel, root, door)
        try:
            return self.finish(process)
        finally:
            if who == "new":
                process.close()

    def start(self, who: str, kernel: Kernel, root: Path, door: str) -> Process:
        process = self.live.get(who)
        if process is None:
            process = self._new.pop()
            self._ready()
        with suppress(AskedError):  # the directory may be gone
            process.run(f"os.chdir({str(root / kernel.folder)!r})")
        options = tuple(option.format(root=root) for option in kernel.options)
        if who == "other":
            process.start(door, kernel.source, options)
        else:
            process.start("compile", kernel.source, options, arch="sm_80")
        return process

    def finish(self, process: Process) -> str:
        try:
            return answer_of(process.finish())
        except AskedError as error:
            return "refused" if error.args[0] == "CompileError" else f"{error.args}"

    def right(self, kernel: Kernel, root: Path) -> str:
        """Return what a build without any cache gives."""
        options = []
        for option in kernel.options:
            filled = option.format(root=root)
            if filled.startswith("-I"):
                filled = f"-I{root / kernel.folder / filled[2:]}"
            options.append(filled)
        more = ("-arch=sm_80", "-std=c++17", "-default-device")
        code = self._nvrtc.compile(kernel.source, *options, *more).code
        return "refused" if code is None else answer_of(code)

    def close(self) -> None:
        for process in (*self.live.values(), *self._new):
            process.close()


class Course:
    """One course through a world: its folder is made anew, and its steps are taken in order."""

    def __init__(self, players: Players, root: Path, kernels: list[Kernel]) -> None:
        self.players, self.root = players, root
        chance = random.Random(0)
        texts = {
            f"d{folder % 3}/{name}": _text(chance, number)
            for number, name in enumerate(NAMES)
            for folder in (number, number + 1)
        }
        self.folder = Folder(root, players.images, texts)
        self.kernels = kernels
        self.answers = 0
        self._seconds = 0.03  # that the last build took

    def run(self, steps: list[Step]) -> Failure | None:
        try:
            for number, step in enumerate(steps):
                failure = self._take(number, step)
                if failure is not None:
                    return failure
            return None
        finally:
            self.folder.unmount()

    def _take(self, number: int, step: Step) -> Failure | None:
        kernel = self.kernels[step.kernel]
        kernel = kernel._replace(source=f"// {self.root.name}\n{kernel.source}")
        kind, *arguments = step.change
        if kind == "during":
            part, change = arguments
            kernel = kernel._replace(source=f"// during {number}\n{kernel.source}")
            timer = threading.Timer(part * self._seconds, self.folder.change, [change])
            begin = time.monotonic()
            process = self.players.start("same", kernel, self.root, "compile")
            timer.start()
            self.players.finish(process)  # of before, of after, or of something between
            self._seconds = time.monotonic() - begin
            timer.join()
        elif kind == "twice":
            path, *numbers = arguments
            self._begin_a_second()
            for value in numbers:
                self.players.ask("same", kernel, self.root, "compile")
                self.folder.change(["number", path, value])
        else:
            self.folder.change(step.change)
        got = {who: self.players.ask(who, kernel, self.root, step.door) for who in step.order}
        self.answers += len(got)
        if not self._stands(kernel):
            return None
        expected = self.players.right(kernel, self.root)
        for who, answer in got.items():
            if answer != expected:
                named = f"{who} by {step.door}" if who == "other" else who
                return Failure(number, named, answer, expected)
        return None

    def _begin_a_second(self) -> None:
        """Wait for the next second, where the file system's clock knows no less."""
        if os.stat(self.root).st_mtime_ns % 10**9 == 0:
            time.sleep(1.0 - time.time() % 1.0)

    def _stands(self, kernel: Kernel) -> bool:
        """Say whether the working directory is there, without which no path is relative to it."""
        return (self.root / kernel.folder).is_dir()


# --- the fewest steps ----------------------------------------------------------------------------


def shrunk(players: Players, root: Path, kernels: list[Kernel], steps: list[Step]) -> list[Step]:
    """Return fewer steps that go wrong too, as far as a minute leads."""
    until = time.monotonic() + SHRINK_SECONDS
    tries = 0

    def fails(fewer: list[Step]) -> bool:
        nonlocal tries
        tries += 1
        return Course(players, Path(f"{root}-{tries}"), kernels).run(fewer) is not None

    size = len(steps) // 2
    while size and time.monotonic() < until:
        at = 0
        while at < len(steps) and time.monotonic() < until:
            fewer = steps[:at] + steps[at + size :]
            if fails(fewer):
                steps = fewer
            else:
                at += size
        size //= 2
    return steps


def main() -> None:
    folder, place, seed, worlds, count = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    home = folder / "home"
    home.mkdir()
    trees = home / "trees"
    trees.mkdir()
    if place != "here":
        mount(place, folder / "image", trees)
    mounts = place != "here" or may_mount(trees)
    players = Players(home)
    steps_taken = answers = 0
    wrong = []
    for number in range(seed, seed + worlds):
        kernels, steps = plan(number, count, mounts)
        root = trees / f"w{number}"
        course = Course(players, root, kernels)
        failure = course.run(steps)
        steps_taken += count if failure is None else failure.step + 1
        answers += course.answers
        if failure is not None:
            fewer = shrunk(players, root, kernels, steps[: failure.step + 1])
            wrong.append(
                {
                    "seed": number,
                    "failure": failure._asdict(),
                    "kernel": kernels[steps[failure.step].kernel]._asdict(),
                    "steps": fewer,
                }
            )
    players.close()
    print(json.dumps({"steps": steps_taken, "answers": answers, "wrong": wrong}))


if __name__ == "__main__":
    main()
