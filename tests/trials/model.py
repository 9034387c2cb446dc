"""Compares a random program with a model: after each step, every process gets the result of a fresh build.

A world is a folder of headers and some kernels. A step changes the folder, or requests a kernel during a
change. Then one process, another that lives as long, and a new one request a kernel, in any order. The model
is plain NVRTC, called with the same options. A string in a kernel's code shows which header defined what.

Kinds of steps; after each, three processes request the kernel in any order, through any of four doors:

- a header is written, removed, touched, moved, copied, replaced by a rename, by a link or a hard link, or
  becomes a folder; it gets another number of the same size, also with its times set back;
- a folder is moved, swapped with another, copied, linked or removed;
- a folder is mounted over another, an empty file system over one, an image over one, later another image with the
  same inodes and times under the same path, and all of these are unmounted (as root);
- a header passed as text by `headers=` gets another text or appears;
- an input of the linker (LTO-IR, PTX, a source), named by `link=`, is written, with its times set back,
  replaced by a rename, moved or removed;
- *twice*: a header is edited twice within a second, and requested in between;
- *race*: a thread makes one change while a process builds, or several one after the other while four processes
  build the same kernel;
- a wait that is shorter than a tick of the file system's clock.

Kernels include headers in thirteen spellings (`steps.INCLUDES`), along 2 to 5 folders, absolute or relative.

``python -m tests.trials.model FOLDER PLACE SEED WORLDS STEPS`` prints one line of JSON: the number of
steps and results, and the worlds with a wrong result, each with the fewest steps that show it. A world's
steps depend only on its seed.
"""

import importlib.util
import json
import os
import random
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.kernel_process import Process, RequestError, text_in
from tests.plain_nvrtc import PlainNvrtc
from tests.trials.steps import LIBRARIES, LIBRARY, NUMBERS, Kernel, Step, plan, text_of
from tests.trials.trees import NAMES, Folder, make_images, may_mount, mount

SHRINK_SECONDS = 60.0


class Failure(NamedTuple):
    """A wrong result: the process and step, the result, and that of a fresh build."""

    step: int
    who: str
    got: str
    expected: str


# --- running steps --------------------------------------------------------------------------------


class Players:
    """The processes that request kernels, and plain NVRTC, whose result is right."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._new: list[Process] = []
        self._texts = 0
        os.environ["RTCOMPILE_CACHE_DIR"] = str(folder / "cache")
        self.images = folder / "images"
        make_images(self.images)
        spec = importlib.util.find_spec("nvidia")
        self._nvrtc = PlainNvrtc(Path(spec.submodule_search_locations[0]) / "cuda_nvrtc")
        empty = folder / "empty"
        empty.mkdir(exist_ok=True)
        os.chdir(empty)  # NVRTC searches the working directory too
        self.live = {"same": Process(cupy=False), "other": Process()}
        # These two are only for races; with the two others there are four.
        self.further = [Process(cupy=False) for _ in range(2)]
        self._ready()
        self.libraries = {path: {n: self._library(path, n) for n in NUMBERS} for path in LIBRARIES}

    def _library(self, path: str, number: str) -> bytes:
        """Return the bytes of a link input."""
        source, kind = LIBRARY % number, path.rpartition(".")[2]
        if kind == "cu":
            return source.encode()
        lto = kind == "ltoir"
        options = ("-arch=compute_80", "-rdc=true", *(["-dlto"] if lto else []))
        code = self._nvrtc.compile(source, *options, kind="LTOIR" if lto else "PTX").code
        assert code is not None
        return code if lto else code.rstrip(b"\0")

    def _ready(self) -> None:
        """Start the next new process, which does nothing of rtcompile before its first request."""
        self._new.append(Process(cupy=False))

    def request(self, who: str, kernel: Kernel, root: Path, door: str) -> str:
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
        self.start_in(process, kernel, root, door if who == "other" else "")
        return process

    def start_in(self, process: Process, kernel: Kernel, root: Path, door: str) -> None:
        """Begin a request; without a door by `compile`, for the fake device's architecture."""
        with suppress(RequestError):  # the directory may be missing
            process.run(f"os.chdir({str(root / kernel.folder)!r})")
        options = tuple(option.format(root=root) for option in kernel.options)
        more: dict[str, Any] = {} if door else {"arch": "sm_80"}
        if kernel.given:
            more["headers"] = kernel.given
        if kernel.library:
            more["link"] = [str(root / kernel.library)]
        process.start(door or "compile", kernel.source, options, **more)

    def finish(self, process: Process) -> str:
        try:
            code = process.finish()
        except RequestError as error:
            refused = error.args[0] in ("CompileError", "LinkError")
            missing = error.args[0] == "InvalidRequest" and "link[0]" in error.args[1]
            return "refused" if refused or missing else f"{error.args}"
        linked = {*re.findall(r"LINKED:\d+", code.decode("latin-1"))}
        return " ".join([text_in(code), *sorted(linked)])

    def right(self, kernel: Kernel, root: Path) -> str:
        """Return the result of a build without any cache."""
        options = []
        if kernel.given:
            self._texts += 1
            texts = self._folder / "texts" / str(self._texts)
            for name, text in kernel.given.items():
                (texts / name).parent.mkdir(parents=True, exist_ok=True)
                (texts / name).write_text(text)
            options.append(f"-I{texts}")
        for option in kernel.options:
            filled = option.format(root=root)
            if filled.startswith("-I"):
                filled = f"-I{root / kernel.folder / filled[2:]}"
            options.append(filled)
        more = ["-arch=sm_80", "-std=c++17", "-default-device"]
        linked = []
        if kernel.library:
            more.append("-rdc=true")  # the function may be in another input
            try:
                data = (root / kernel.library).read_bytes()
            except OSError:
                return "refused"
            every = self.libraries[kernel.library].items()
            linked = [f"LINKED:{number}" for number, library in every if library == data]
        code = self._nvrtc.compile(kernel.source, *options, *more).code
        return "refused" if code is None else " ".join([text_in(code), *linked])

    def close(self) -> None:
        for process in (*self.live.values(), *self.further, *self._new):
            process.close()


class Course:
    """One run through a world: its folder is created, and its steps run in order."""

    def __init__(self, players: Players, root: Path, kernels: list[Kernel]) -> None:
        self.players, self.root = players, root
        chance = random.Random(0)
        texts = {
            f"d{folder % 3}/{name}": text_of(chance, number)
            for number, name in enumerate(NAMES)
            for folder in (number, number + 1)
        }
        self.folder = Folder(root, players.images, texts)
        self.kernels = list(kernels)
        for path, library in players.libraries.items():
            (root / path).write_bytes(library["1111"])
        self.results = 0
        self._seconds = 0.03  # duration of the last build

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
        kind, *arguments = step.change
        if kind == "given":
            [name, text] = arguments
            kernel = kernel._replace(given={**kernel.given, name: text})
            self.kernels[step.kernel] = kernel
        kernel = kernel._replace(source=f"// {self.root.name}\n{kernel.source}")
        if kind == "race":
            kernel = kernel._replace(source=f"// race {number}\n{kernel.source}")
            self._race(kernel, *arguments)
        elif kind == "twice":
            path, *numbers = arguments
            self._begin_a_second()
            for value in numbers:
                self.players.request("same", kernel, self.root, "compile")
                self.folder.change(["number", path, value, ""])
        elif kind != "given":
            self._change(step.change)
        got = {who: self.players.request(who, kernel, self.root, step.door) for who in step.order}
        self.results += len(got)
        if not self._stands(kernel):
            return None
        expected = self.players.right(kernel, self.root)
        for who, result in got.items():
            if result != expected:
                named = f"{who} by {step.door}" if who == "other" else who
                return Failure(number, named, result, expected)
        return None

    def _change(self, change: list[Any]) -> None:
        if change[0] == "library":
            _, path, number, how = change
            data = self.players.libraries[path][number]
            with suppress(OSError):
                self.folder.replace(self.root / path, data, how)
        else:
            self.folder.change(change)

    def _race(self, kernel: Kernel, count: int, part: float, changes: list[list[Any]]) -> None:
        """Make the changes in order, in a part of the time for which this many processes build the kernel."""

        def edit() -> None:
            for change in changes:
                time.sleep(part * self._seconds / len(changes))
                self._change(change)

        builders = [*self.players.live.values(), *self.players.further][:count]
        editor = threading.Thread(target=edit)
        begin = time.monotonic()
        for process in builders:
            self.players.start_in(process, kernel, self.root, "")
        editor.start()
        for process in builders:
            # The result may be from before, after or during the changes.
            self.players.finish(process)
        self._seconds = (time.monotonic() - begin) / count
        editor.join()

    def _begin_a_second(self) -> None:
        """Wait for the next second if the file system's times have whole seconds."""
        if os.stat(self.root).st_mtime_ns % 10**9 == 0:
            time.sleep(1.0 - time.time() % 1.0)

    def _stands(self, kernel: Kernel) -> bool:
        """Return whether the working directory exists, which relative paths need."""
        return (self.root / kernel.folder).is_dir()


# --- the fewest steps ----------------------------------------------------------------------------


def shrunk(players: Players, root: Path, kernels: list[Kernel], steps: list[Step]) -> list[Step]:
    """Return fewer steps that fail too, found within a minute."""
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
    folder, file_system = Path(sys.argv[1]), sys.argv[2]
    seed, worlds, count = map(int, sys.argv[3:])
    home = folder / "home"
    home.mkdir()
    trees = home / "trees"
    trees.mkdir()
    if file_system != "here":
        mount(file_system, folder / "image", trees)
    mounts = file_system != "here" or may_mount(trees)
    players = Players(home)
    steps_taken = results = 0
    wrong = []
    for number in range(seed, seed + worlds):
        kernels, steps = plan(number, count, mounts)
        root = trees / f"w{number}"
        course = Course(players, root, kernels)
        failure = course.run(steps)
        steps_taken += count if failure is None else failure.step + 1
        results += course.results
        if failure is not None:
            fewer = shrunk(players, root, kernels, steps[: failure.step + 1])
            kernel = kernels[steps[failure.step].kernel]._asdict()
            failed = failure._asdict()
            wrong.append({"seed": number, "failure": failed, "kernel": kernel, "steps": fewer})
    players.close()
    print(json.dumps({"steps": steps_taken, "results": results, "wrong": wrong}))


if __name__ == "__main__":
    main()
