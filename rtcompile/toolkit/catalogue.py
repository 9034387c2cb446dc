"""The parts of a toolkit, which ``parts.ini`` lists, and their folders in each layout.

To add a wheel layout, add one key to `_FOLDERS` and `WHEELS`, and the same key to the sections of its parts.

A *layout* is one way in which NVIDIA ships the same files: ``wheels13`` (everything under ``nvidia/cu13``),
``wheels12`` (one folder under ``nvidia`` per package), ``conda`` (never ``$CONDA_PREFIX/include``, which has the
headers of every other package too), ``toolkit`` (the installer's folder), and ``bundled``: the headers inside the
library of NVRTC 13.3 and newer, without the runtime API and cuRAND.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from rtcompile.named import NamedTuple

# --- A table of the parts of a toolkit and where each layout keeps them ---------------------------

# The toolkit's target folders for each machine, newest first.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("x86_64-linux",),
    "aarch64": ("sbsa-linux", "aarch64-linux"),
}

CUDA_ENVIRONMENT = ("CUDA_PATH", "CUDA_HOME")
CUTLASS_ENVIRONMENT = ("RTCOMPILE_CUTLASS_PATH", "CUTLASS_PATH")
HOST_COMPILER_ENVIRONMENT = ("NVCC_CCBIN", "CUDAHOSTCXX")

# The installers' default folders. `cuda` links to the administrator's choice, so it precedes the numbered folders.
USUAL_ROOTS = ("/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda")

# Folders of each kind of files, below a layout's root. `wheel` is the folder of a part's CUDA 12 wheel.
_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "wheels13": ("nvidia/cu13/{kind}",),
    "wheels12": ("nvidia/{wheel}/{kind}",),
    "conda": ("{kind}", "targets/{target}/{kind}"),
    "toolkit": ("{kind}64", "{kind}", "targets/{target}/{kind}"),
    "bundled": ("{kind}",),
}


class Part(NamedTuple):
    """One part of a toolkit, or another package with headers: a section of ``parts.ini``, which explains the fields."""

    name: str  # its label in the search path
    what: str
    kind: str
    markers: tuple[str, ...]
    packages: Mapping[str, str]  # by layout
    headers: tuple[str, ...]
    states: tuple[str, ...]
    files: tuple[str, ...]
    required: bool
    below: str
    then: str

    @property
    def in_text(self) -> str:
        """Its name in a message, ``"the CUDA runtime headers"``."""
        what = self.what.partition(" (")[0]
        return f"the {what}" if what.endswith("headers") else what

    def package(self, layout: str) -> str:
        """Return its package in a layout, or ``""``."""
        return self.packages.get(layout, "")

    def directories(self, layout: str, targets: Sequence[str]) -> Iterator[str]:
        """Yield its possible folders in a layout, below the root."""
        wheel = self.package(layout).removeprefix("nvidia-").removesuffix("-cu12")
        folders = _FOLDERS[layout] if wheel else ()
        for below in (f"/{self.below}", "") if self.below else ("",):
            for folder in folders:
                if (layout, self.kind, folder) == ("conda", "include", "{kind}"):
                    continue
                for target in targets if "{target}" in folder else ("",):
                    names = {"kind": self.kind, "wheel": wheel.replace("-", "_"), "target": target}
                    yield folder.format_map(names) + below


def _parts() -> Iterator[Part]:
    parser = configparser.RawConfigParser()
    parser.read(os.path.join(os.path.dirname(__file__), "parts.ini"), encoding="utf-8")
    for name in parser.sections():
        row = parser[name]
        lists = ("markers", "headers", "states", "files")
        yield Part(
            name,
            row["what"],
            row["kind"],
            packages={layout: row[layout] for layout in _FOLDERS if layout in row},
            required=row.getboolean("required", False),
            below=row.get("below", ""),
            then=row.get("then", ""),
            **{each: tuple(row.get(each, "").split()) for each in lists},
        )


PART: Mapping[str, Part] = {part.name: part for part in _parts()}
# The parts of a toolkit itself.
PARTS = tuple(part for part in PART.values() if part.markers)
HEADER_PARTS = tuple(part.name for part in PARTS if part.kind == "include")

# The layouts of wheels, the preferred first, and the CUDA major version that each is for.
WHEELS = {"wheels13": 13, "wheels12": 12}


def command(parts: Sequence[Part], layout: str, release: tuple[int, int]) -> str:
    """Return the command that installs `parts` of a CUDA release; "" if the layout lacks a package."""
    major, minor = release
    packages = [part.package(layout) for part in parts]
    if not all(packages):
        return ""
    if layout == "conda":
        return f"`conda install {' '.join(packages)} cuda-version={major}.{minor}`."
    wanted = [
        f'"{package}=={wheel_version(part.name, major, minor)}.*"'
        for part, package in zip(parts, packages, strict=True)
    ]
    return f"`pip install {' '.join(wanted)}`."


def wheel_version(part: str, major: int, minor: int) -> str:
    """Return the version of a part's wheel that came with CUDA `major`.`minor`."""
    if part == "curand":
        return f"10.{major - 9}.{minor + 1 if major == 12 else minor}"
    if part == "cccl" and (major, minor) >= (13, 3):  # numbered 13.<CCCL's own version>
        return f"{major}.3.{minor}"
    return f"{major}.{minor}"


# --- Reads versions from metadata, headers and file names, without loading any library ------------

# The version macros are near the top, after the licence; cuda_runtime_api.h has 600 KB.
_HEAD = 64 << 10

# The headers with CCCL's version, since CUDA 12.5 and before it.
_CCCL_HEADERS = ("cuda/std/__cccl/version.h", "cuda/std/detail/libcxx/include/__cccl/version.h")

_IN_FILE_NAME = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")


def of_wheels(site_dir: str) -> Mapping[str, str]:
    """Map the names of distributions to their versions, from the names of the ``dist-info`` folders."""
    installed = {}
    for entry in _entries(site_dir):
        if entry.endswith(".dist-info"):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            installed[re.sub(r"[._]", "-", name).lower()] = version
    return installed


def of_conda(prefix: str) -> Mapping[str, str]:
    """Map the names of packages to their versions, from the names of the records in ``conda-meta``."""
    installed = {}
    for entry in _entries(os.path.join(prefix, "conda-meta")):
        if entry.endswith(".json") and entry.count("-") >= 2:
            name, version, _build = entry.rsplit("-", 2)
            installed[name] = version
    return installed


def of_toolkit(root: str) -> Mapping[str, str]:
    """Map the names of components to their versions, from the installer's ``version.json``."""
    import json

    try:
        with open(os.path.join(root, "version.json"), encoding="utf-8") as file:
            components = json.load(file)
        return {name: entry["version"] for name, entry in components.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def of_part(part: Part, directory: str, path: str, package: str) -> str:
    """Return the CUDA version of a part, from its files and from its package's metadata."""
    # The package's version has more digits ("12.9.86" instead of 12.9). But upgrades can leave old metadata behind,
    # and some packages have other numbers than CUDA (`nvidia-cuda-cccl` 13.3.5.0 is CUDA 13.5's). So if the two
    # differ in major.minor, the file's version is returned.
    if part.states:
        header, macro = part.states
        stated = _of_macro(macro, _macro(os.path.join(directory, header), macro))
    else:
        stated = _of_name(path)
    if not stated or package == stated or package.startswith(f"{stated}."):
        return package
    return stated


def _of_macro(name: str, number: int) -> str:
    if name == "CUDART_VERSION":  # 12090
        major, minor = number // 1000, number % 1000 // 10
    else:  # CCCL 2.7 came with CUDA 12.8, 2.8 with 12.9, 3.n with 13.n.
        major, minor = number // 1000000, number // 1000 % 1000
        major, minor = (12, minor + 1) if major == 2 else (major + 10, minor)
    return f"{major}.{minor}" if number else ""


def _of_name(path: str) -> str:
    """Return the version in a library's file name, or in that of NVRTC's builtins beside it; "" if there is none."""
    # `libnvrtc.so.12` links to `libnvrtc.so.12.9.86`; in wheels only `libnvrtc-builtins.so.12.9` has a version.
    match = _IN_FILE_NAME.search(os.path.realpath(path))
    if match is None:
        builtins = nvrtc_builtins(path)
        match = _IN_FILE_NAME.search(builtins) if builtins else None
    return match[1] if match else ""


def nvrtc_builtins(nvrtc: str) -> str | None:
    """Return the ``libnvrtc-builtins.so.12.9`` next to ``libnvrtc.so.12``, or None."""
    directory, name = os.path.split(nvrtc)
    match = re.match(r"libnvrtc\.so\.(\d+)", name)
    if match is None:
        return None
    exact = re.compile(rf"libnvrtc-builtins\.so\.{match[1]}\.\d+")
    found = sorted(entry for entry in _entries(directory) if exact.fullmatch(entry))
    return os.path.join(directory, found[-1]) if found else None


def of_cccl(directory: str) -> str:
    """Return CCCL's own version (``"2.8.2"`` came with CUDA 12.9), or an empty string."""
    for header in _CCCL_HEADERS:
        number = _macro(os.path.join(directory, header), "CCCL_VERSION")
        if number:
            return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
    return ""


def of_cutlass(directory: str) -> str:
    """Return CUTLASS's version, or an empty string."""
    header = os.path.join(directory, "cutlass/version.h")
    numbers = [_macro(header, f"CUTLASS_{level}") for level in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(str(number) for number in numbers) if any(numbers) else ""


def _macro(path: str, name: str) -> int:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD).decode("latin-1")
    except OSError:
        return 0
    match = re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)", head, re.MULTILINE)
    return int(match[1]) if match else 0


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
