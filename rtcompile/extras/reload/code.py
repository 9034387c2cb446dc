"""Rebuilds the kernels of a file that is being edited, between two launches.

A launch looks up its function. At most every 50 ms, that look-up checks the file and the headers that its
last build read. The new code replaces the old only if it compiles, loads, and has every kernel in use.
Otherwise the error is shown once, and the old code stays in use.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import cupy

from rtcompile import forks
from rtcompile.errors import CompileError, InvalidRequest, RtcompileError
from rtcompile.extras.reload import Files
from rtcompile.files.sealed import read_text
from rtcompile.frontends.lazy_code import ARGUMENTS, LazyCode
from rtcompile.request.values import absolute
from rtcompile.request.values import path as checked_path

if TYPE_CHECKING:
    from rtcompile import ObjectCode

_POLL_SECONDS = 0.05
_GONE_SECONDS = 0.5  # an editor may remove a file for a moment before it writes the new one


class ReloadedCode(LazyCode):
    """The code of a file, from its last successful build."""

    def __init__(self, path: object, given: Mapping[str, Any]) -> None:
        self._name = absolute(checked_path("path", path))
        source = read_text(self._name)
        self._files = Files(self._name)
        self._files.begin()
        self._given = {**ARGUMENTS, **given}
        super().__init__(**{**self._given, "code": source, "name": self._name})
        # A kernel's symbol to the expression that named it: an edit may change the symbol.
        self._names: dict[str, str] = {}
        self._polled = time.monotonic()
        self._gone_since: float | None = None
        self._reported = ""
        self.lock = threading.Lock()
        _all.add(self)

    def _load(self, device: int, log_stream: Any = None) -> Any:
        try:
            module = super()._load(device, log_stream)
        except CompileError as error:
            self._note(self, error)
            raise
        self._names.update({symbol: name for name, symbol in module.mapping.items()})
        return module

    def module(self) -> Any:
        """Return the current file's module on the current device."""
        self.refresh()
        return super().module()

    def object_code(self) -> Any:
        """Return the current file's code."""
        self.refresh()
        return super().object_code()

    def _keep(self, code: ObjectCode) -> None:
        super()._keep(code)
        self._note(self)

    def functions_of(self, name: str) -> dict[int, Any]:
        """Return a kernel's functions by device; each launch looks one up."""
        return self.functions.setdefault(name, _Functions(self))

    def function(self, name: str) -> Any:
        """Return a kernel by the current symbol of its name expression."""
        mapping = self.module().mapping
        return super().function(mapping.get(self._names.get(name), name))

    def refresh(self) -> None:
        """Build again if a file has changed; keep the old code if that fails."""
        now = time.monotonic()
        if now - self._polled < _POLL_SECONDS or self.lock.locked():
            return  # another thread is building, and this one uses the old code
        with self.lock:  # an interrupt between `acquire` and a ``try`` would leave it locked
            try:
                self._polled = now
                changed = self._gone_since is not None or self._files.changed()
                if changed and not _capturing(self):
                    self._replace(now)
            finally:
                self._polled = time.monotonic()

    def _replace(self, now: float) -> None:
        self._files.begin()
        try:
            source = read_text(self._name)
        except InvalidRequest as error:
            self._wait(now, str(error))
            return
        if not source.strip():
            self._wait(now, f"{self._name}: the file is empty")
            return
        self._gone_since = None
        try:
            fresh = LazyCode(**{**self._given, "code": source, "name": self._name})
            made = self._built(fresh)
        except RtcompileError as error:
            self._note(self, error)
            self._report_once(str(error))
            return
        self._note(fresh)
        self._reported = ""
        # The functions come last: a thread that finds none takes them from the module, which is new by then.
        self.arguments, self._request = fresh.arguments, fresh.request
        self.objects, self.modules = fresh.objects, fresh.modules
        for name, functions in self.functions.items():
            functions.clear()
            functions.update(made.get(name, {}))

    def _built(self, fresh: LazyCode) -> dict[str, dict[int, Any]]:
        """Build the kernels in use for the current device; return their functions, by name and device."""
        if not self.modules:
            if self.objects:
                fresh.object_code()
            return {}
        mapping = fresh.module().mapping
        made = {}
        for name, functions in self.functions.items():
            symbol = mapping.get(self._names.get(name), name)
            made[name] = {
                device: fresh.function(symbol) for device in functions if device in fresh.modules
            }
        self._names.update({symbol: name for name, symbol in mapping.items()})
        return made

    def _note(self, code: LazyCode, error: RtcompileError | None = None) -> None:
        """Watch the source, and the headers that were read or that an error names."""
        read = {self._name}
        for built in code.objects.values():
            read |= {header.path for header in built.build.headers}
        if isinstance(error, CompileError):
            read |= {absolute(one.file) for one in error.diagnostics if one.file}
            read.add(os.path.dirname(self._name))  # a missing header may be added there
        self._files.note({path for path in read if os.path.isabs(path)})

    def _wait(self, now: float, why: str) -> None:
        """Report a file that cannot be read or is empty, once it has been so for a while."""
        self._gone_since = now if self._gone_since is None else self._gone_since
        if now - self._gone_since >= _GONE_SECONDS:
            self._report_once(why)

    def _report_once(self, why: str) -> None:
        if why != self._reported:
            self._reported = why
            built = self.modules or self.objects
            stays = "; the kernels built before stay in use" if built else ""
            if sys.stderr is not None:  # it is None in a program that was started without
                sys.stderr.write(f"{why}\n{self._name} was not reloaded{stays}.\n")
                sys.stderr.flush()


_all: weakref.WeakSet[ReloadedCode] = weakref.WeakSet()


@forks.in_child
def _after_fork() -> None:
    for code in _all:  # another thread of the parent may have held its lock
        code.lock = threading.Lock()


def _capturing(code: LazyCode) -> bool:
    """Return whether CuPy's current stream is being captured: nothing may be loaded then."""
    if not code.modules:
        return False
    stream = cupy.cuda.get_current_stream()
    return bool(stream.ptr) and bool(stream.is_capturing())


class _Functions(dict[int, Any]):
    """A kernel's functions by device; reading one rebuilds an edited file first."""

    def __init__(self, code: ReloadedCode) -> None:
        super().__init__()
        self._code = code

    def get(self, device: int, default: Any = None) -> Any:
        self._code.refresh()
        return super().get(device, default)
