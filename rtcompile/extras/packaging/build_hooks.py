"""Build hooks for hatchling and setuptools that put a project's bundle into its wheel.

Before a wheel is finished, its files are tested in a process that may not compile. An editable install gets
no bundle, since its sources change. setuptools packs Python files only, so the hook adds kernels and headers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rtcompile.errors import InvalidRequest, RtcompileError
from rtcompile.named import NamedTuple

# The parts of each major version of CUDA that are installed for the field ``cuda``.
_PARTS = {
    "12": "cccl,cudart,curand,nvcc,nvjitlink,nvrtc",
    "13": "cccl,crt,cudart,curand,nvcc,nvjitlink,nvrtc,nvvm",
}


class Table(NamedTuple):
    """A project's configuration of its bundle."""

    targets: Sequence[str]  # the targets of ``rtcompile bundle``
    bundle: str  # the path of the bundle in the wheel
    archs: Sequence[str]
    source: str = "."  # the folder of the project's packages: "." or "src"
    cuda: Sequence[str] = ()  # releases to install and build with, "12.9"; else the installed one

    @classmethod
    def read(cls, fields: Mapping[str, Any], name: str) -> Table:
        """Return the table that pyproject.toml calls `name`."""
        for field, value in fields.items():
            if field not in cls._fields:
                raise InvalidRequest(f"[{name}] has {field!r}; known are {', '.join(cls._fields)}")
            kind = str if field in ("bundle", "source") else list
            if not isinstance(value, kind):
                raise InvalidRequest(f"[{name}] {field} = {value!r}: expected a {kind.__name__}")
        missing = [field for field in ("targets", "bundle", "archs") if not fields.get(field)]
        if missing:
            raise InvalidRequest(f"[{name}] lacks {', '.join(missing)}")
        return cls(**fields)

    def build(self, root: str, path: str) -> None:
        """Build the bundle of the project in `root` and put it at `path`."""
        folder = os.path.join(root, self.source)
        output = ["-o", os.path.abspath(path), "--arch", ",".join(self.archs)]
        for count, release in enumerate(self.cuda or [""]):
            with _installed(release) as toolkit:
                words = [*output, *["--update"] * (count > 0)]
                if error := self._command(root, folder, [*toolkit, *sys.path], words):
                    raise InvalidRequest(f"CUDA {release}: {error}" if release else error)
        if self.cuda:
            self._check_releases(path)

    def _check_releases(self, path: str) -> None:
        """Raise an error if a release in ``cuda`` made no build, because another toolkit came first."""
        command = [sys.executable, "-m", "rtcompile", "bundle", "list", path, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        compilers = {build["compiler"] for build in json.loads(done.stdout)["builds"]}
        for release in self.cuda:
            if not any(
                f"{compiler.split()[1]}.".startswith(f"{release}.") for compiler in compilers
            ):
                raise InvalidRequest(
                    f"no build is by CUDA {release}, but by {', '.join(sorted(compilers))}: the environment "
                    "has a CuPy or a toolkit that comes first. Build in an isolated environment."
                )

    def check(self, root: str, files: str, advice: str) -> None:
        """Find every build with a wheel's files alone; `advice` says how to add files to the wheel."""
        source = os.path.realpath(os.path.join(root, self.source))
        # The project's own folder is left out, since it has files that the wheel may lack.
        path = [folder for folder in sys.path if os.path.realpath(folder) != source]
        if error := self._command(root, files, path, ["verify", self.bundle]):
            raise InvalidRequest(
                f"no wheel was made, since its kernels would not work without a compiler: {error}\n{advice}"
            )

    def _command(self, root: str, folder: str, path: Sequence[str], words: Sequence[str]) -> str:
        """Run ``rtcompile bundle WORDS TARGETS`` in a folder whose packages are found first; return its error."""
        targets = [
            os.path.join(root, name) if name.endswith(".cu") else name for name in self.targets
        ]
        command = [sys.executable, "-m", "rtcompile", "bundle", *words, *targets]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([folder, *map(os.path.abspath, path)]),
            "PYTHONDONTWRITEBYTECODE": "1",  # the files become a wheel
        }
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        return done.stderr.strip() if done.returncode else ""


@contextmanager
def _installed(release: str) -> Iterator[list[str]]:
    """Yield a folder into which a release of CUDA is installed by pip; none for ``""``."""
    if not release:
        yield []
        return
    parts = _PARTS.get(release.partition(".")[0])
    if parts is None:
        raise InvalidRequest(
            f"cuda has {release!r}: expected releases of CUDA 12 or 13, such as '12.9'"
        )
    with tempfile.TemporaryDirectory(prefix="rtcompile-cuda-") as folder:
        requirement = f"cuda-toolkit[{parts}]=={release}.*"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder]
        done = subprocess.run([*command, requirement], capture_output=True, text=True)
        if done.returncode:
            raise InvalidRequest(
                f"CUDA {release} was not installed. `pip install {requirement!r}`: {done.stderr.strip()} "
                "(`pip` has to be in `requires` of [build-system])"
            )
        yield [folder]


@contextmanager
def errors_end_the_build() -> Iterator[None]:
    """End a build backend with an error's message, without a traceback."""
    try:
        yield
    except RtcompileError as error:
        raise SystemExit(f"rtcompile: {error}") from None


# --- The hook for setuptools, configured by ``[tool.rtcompile.bundle]`` ---------------------------

_SOURCES = ("cu", "cuh", "h", "hpp", "hxx", "hh", "inl", "ipp", "inc")
_ADVICE = (
    f"The hook adds the packages' files that end in .{', .'.join(_SOURCES)}. Name others, for example "
    '`package-data = { mypackage = ["kernels/*"] }` in [tool.setuptools].'
)


def finalize(distribution: Any) -> None:
    """Let ``build_py`` build the bundle, if the project in this folder has a table for it."""
    fields = _table()
    if fields is None:
        return

    with errors_end_the_build():
        table = Table.read(fields, "tool.rtcompile.bundle")
    bundled = {target.partition(":")[0].partition(".")[0] for target in table.targets}
    before = distribution.get_command_class("build_py")

    class BuildWithBundle(before):  # type: ignore[misc,valid-type]
        """Copies the project's modules and kernels, and builds the bundle beside them."""

        package_data: dict[str, list[str]]

        def finalize_options(self) -> None:
            super().finalize_options()
            self.package_data = dict(self.package_data or {})
            for package in self.packages or ():
                if package.partition(".")[0] in bundled:
                    given = self.package_data.get(package, [])
                    self.package_data[package] = [*given, *(f"**/*.{end}" for end in _SOURCES)]

        def run(self) -> None:
            super().run()
            if getattr(self, "editable_mode", False):
                return
            with errors_end_the_build():
                table.build(os.getcwd(), os.path.join(self.build_lib, table.bundle))
                table.check(os.getcwd(), os.path.abspath(self.build_lib), _ADVICE)

        def get_outputs(self, *arguments: Any, **options: Any) -> list[str]:
            outputs = super().get_outputs(*arguments, **options)
            if getattr(self, "editable_mode", False):
                return [*outputs]
            return [*outputs, os.path.join(self.build_lib, table.bundle)]

    distribution.cmdclass["build_py"] = BuildWithBundle


def _table() -> dict[str, Any] | None:
    """Return the project's table, None if there is none; raise if setuptools would ignore the hook."""
    try:
        with open("pyproject.toml", "rb") as file:
            data = file.read()
    except OSError:
        return None
    if b"rtcompile" not in data:
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        from setuptools.compat.py310 import tomllib
    tool = tomllib.loads(data.decode()).get("tool", {})
    fields: dict[str, Any] | None = tool.get("rtcompile", {}).get("bundle")
    if fields is not None and "build_py" in tool.get("setuptools", {}).get("cmdclass", {}):
        raise SystemExit(
            "[tool.rtcompile.bundle] does nothing beside a build_py in [tool.setuptools.cmdclass], which "
            "replaces rtcompile's; pass that class to setup(cmdclass=…) in setup.py"
        )
    return fields
