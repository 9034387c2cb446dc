"""Read versions from what lies beside the files: metadata, headers, file names. Loads nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["of_cccl", "of_conda", "of_cutlass", "of_file", "of_toolkit", "of_wheels"]

# The version macros stand near the top, after the licence: cuda_runtime_api.h alone is 600 KB.
_HEAD = 64 << 10

_IN_FILE_NAME = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")


def of_wheels(site_dir: str) -> Mapping[str, str]:
    """Return distribution name to version, from the names of the ``dist-info`` folders."""
    installed = {}
    for entry in _entries(site_dir):
        if entry.endswith(".dist-info"):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            installed[name.replace("_", "-").lower()] = version
    return installed


def of_conda(prefix: str) -> Mapping[str, str]:
    """Return package name to version, from the names of the records in ``conda-meta``."""
    installed = {}
    for entry in _entries(os.path.join(prefix, "conda-meta")):
        if entry.endswith(".json") and entry.count("-") >= 2:
            name, version, _build = entry.rsplit("-", 2)
            installed[name] = version
    return installed


def of_toolkit(root: str) -> Mapping[str, str]:
    """Return component to version, from the installer's ``version.json``."""
    import json

    try:
        with open(os.path.join(root, "version.json"), encoding="utf-8") as file:
            components = json.load(file)
        return {name: entry["version"] for name, entry in components.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def of_file(path: str, macro: str, package: str) -> str:
    """Return the version of one file: what it says itself, in the words of its package.

    The package knows more digits ("12.9.86" where the file says 12.9), but metadata can be left
    behind by an upgrade: where the two differ in major.minor, the file is right.
    """
    stated = _of_macro(path, macro) if macro else _of_name(path)
    if not stated or package.startswith(stated + ".") or package == stated:
        return package
    return stated


def _of_macro(path: str, macro: str) -> str:
    number = _macro(path, macro)  # CUDART_VERSION 12090
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _of_name(path: str) -> str:
    """``libnvrtc.so.12`` links to ``libnvrtc.so.12.9.86``; in wheels only its builtins say 12.9."""
    match = _IN_FILE_NAME.search(os.path.realpath(path))
    if match is None:
        builtins = nvrtc_builtins(path)
        match = _IN_FILE_NAME.search(builtins) if builtins else None
    return match[1] if match else ""


def nvrtc_builtins(nvrtc: str) -> str | None:
    """Return the ``libnvrtc-builtins.so.12.9`` beside ``libnvrtc.so.12``, or None."""
    directory, name = os.path.split(nvrtc)
    if not name.startswith("libnvrtc.so."):
        return None
    major = name.removeprefix("libnvrtc.so.").partition(".")[0]
    exact = re.compile(rf"libnvrtc-builtins\.so\.{major}\.\d+")
    found = sorted(entry for entry in _entries(directory) if exact.fullmatch(entry))
    return os.path.join(directory, found[-1]) if found else None


def of_cccl(directory: str) -> str:
    """Return CCCL's own version (``"2.8.2"`` came with CUDA 12.9), or an empty string."""
    number = _macro(os.path.join(directory, "cuda/std/__cccl/version.h"), "CCCL_VERSION")
    if number:
        return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
    return ""


def of_cutlass(directory: str) -> str:
    """Return CUTLASS's version, or an empty string."""
    header = os.path.join(directory, "cutlass/version.h")
    numbers = [_macro(header, f"CUTLASS_{level}") for level in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(str(number) for number in numbers) if any(numbers) else ""


def _macro(path: str, name: str) -> int:
    match = re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)", _head(path), re.MULTILINE)
    return int(match[1]) if match else 0


def _head(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD).decode("latin-1")
    except OSError:
        return ""


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
