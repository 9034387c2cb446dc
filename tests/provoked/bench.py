"""Provokes messages of real compilers, and checks that they are explained by the right rows."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rtcompile.compilers import nvcc, nvrtc
from rtcompile.files.headers import SearchDir
from rtcompile.messages import catalogue, diagnostics
from rtcompile.messages.available import missing_header
from rtcompile.messages.diagnostics import Attempts
from rtcompile.messages.facts import BuildContext
from rtcompile.request.units import Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.toolkit.model import Library, Toolchain
from tests.processes import ran
from tests.provoked import NEW_CCCL, PLAIN_NVRTC, STRAY_HEADERS, Provoked


class Bench:
    """Provokes messages: resolves headers and runs the compilers in workers."""

    def __init__(
        self,
        toolchain: Callable[[str], Toolchain],
        wheels: Callable[[Sequence[str]], Path],
        scratch: Path,
    ) -> None:
        self._toolchain, self._wheels, self._scratch = toolchain, wheels, scratch

    def failure(self, how: Provoked, compiler: str) -> tuple[str, BuildContext]:
        """Return the provoked log, and its context."""
        toolchain = self._toolchain(how.toolkit)
        search = tuple(self._directories(how.headers))
        flags = self._flags(how, compiler, search)
        unit = TranslationUnit(
            how.source, "kernel.cu", flags, how.names, "cubin", Arch.parse(how.arch)
        )
        library, limits = toolchain.require_nvrtc(), Limits(how.seconds, how.memory)
        run = partial(nvrtc.compile, library=library, limits=limits, search=search)
        attempts = None

        def compiled(source: str, options: tuple[str, ...]) -> str:
            # As with rtcompile's options, a later standard replaces an earlier one.
            kept = [flag for flag in flags if not (options and flag.startswith("-std"))]
            return run(unit._replace(source=source, flags=(*kept, *options))).log

        if compiler == "nvcc":
            log = nvcc.compile(unit, toolchain, limits=limits).log
        elif how.plain:
            log = self._plain_nvrtc(how, library, flags)
        else:
            log = run(unit).log
            attempts = Attempts(compiled, how.source, diagnostics.parse(log), 32)
        context = BuildContext(
            arch=unit.arch,
            capability=how.capability,
            backend=compiler,
            options=flags,
            versions=toolchain.versions,
            search=search,
            source=how.source,
            package_of=missing_header,
            attempts=attempts,
        )
        return log, context

    def _plain_nvrtc(self, how: Provoked, library: Library, flags: Sequence[str]) -> str:
        path = Path(library.path)
        if not how.builtins:
            path = self._scratch / path.name
            path.symlink_to(library.path)
        job = {
            "library": str(path),
            "preload": library.preload if how.builtins else (),
            "source": how.source,
            "options": flags,
        }
        command = [sys.executable, "-c", PLAIN_NVRTC]
        return ran(*command, input=json.dumps(job), cwd=self._scratch, check=True).stdout

    def _flags(self, how: Provoked, compiler: str, search: Sequence[SearchDir]) -> tuple[str, ...]:
        includes = [f"-I{directory.path}" for directory in search]
        usual = [] if how.bare else [f"-arch={how.arch}", "-std=c++17"]
        if not how.bare and compiler == "nvrtc":
            usual.append("-default-device")
        return (*usual, *how.options.split(), *includes)

    def _directories(self, headers: str) -> list[SearchDir]:
        users = 0
        found = []
        for entry in headers.split():
            label, path = self._directory(entry.removeprefix("user:"))
            if entry.startswith("user:"):
                label, users = f"user{users}", users + 1
            found.append(SearchDir(label, path))
        return found

    def _directory(self, entry: str) -> tuple[str, str]:
        if entry.startswith("/"):
            gcc = max(
                Path("/usr/include/c++").glob("[0-9]*"), key=lambda p: int(p.name.split(".")[0])
            )
            return "", entry.format(gcc=gcc.name)
        if entry == "new:cccl":
            return "cccl", str(self._wheels(NEW_CCCL) / "nvidia/cu13/include/cccl")
        if entry in STRAY_HEADERS:
            folder = self._scratch / entry
            for relative, text in STRAY_HEADERS[entry].items():
                (folder / relative).parent.mkdir(parents=True, exist_ok=True)
                (folder / relative).write_text(text)
            return "", str(folder)
        name, _, label = entry.partition(":")
        search = self._toolchain(name).search
        # CUDA 13's wheels have the crt headers among those of the runtime.
        directory = next((d for d in search if d.label == label), search[0])
        return directory.label, directory.path


def first_explained(log: str, context: BuildContext) -> tuple[catalogue.KnownMessage, str] | None:
    """Return the row and the hint of the first message of a log that has one."""
    found = (catalogue.explain(diagnostic, context) for diagnostic in diagnostics.parse(log))
    return next((each for each in found if each is not None), None)


def assert_explained(row: str, how: Provoked, log: str, context: BuildContext) -> None:
    assert how.message in log
    explained = first_explained(log, context)
    assert explained is not None, log
    assert explained[0].id == row, f"{explained}\n{log}"
    for fragment in how.hint:
        assert fragment in explained[1], explained[1]
