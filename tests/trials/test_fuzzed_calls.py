"""Any call of a public function ends soon, in a result or a `RtcompileError`, and never in another error.

For most calls compiling is forbidden (``RTCOMPILE_JIT=0``). They end in an error about their arguments,
in the only cached build, or in `JitDisabled`. Some are built.
"""

import copy
import inspect
import io
import json
import pickle
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile import Arch, CompileRequest, ObjectCode, RtcompileError
from rtcompile.cli import bundling
from rtcompile.extras.packaging.library import KernelLibrary
from rtcompile.extras.record import recording
from rtcompile.extras.resources import Report
from rtcompile.files import sealed
from rtcompile.lookup.bundles import HEAD, INDEX, MAGIC, UnusableError, in_use
from rtcompile.settings import Settings
from tests.packages import Package
from tests.processes import build_of, forget_bundles
from tests.trials.odd_values import ENVIRONMENT, OPTIONS, values
from tests.trials.record import record, times

cupy = pytest.importorskip("cupy")
np = pytest.importorskip("numpy")

CHUNKS = 8
CALLS = times(50, 625)  # of each chunk: 400, 5,000
SECONDS = 30  # limit for each call, also one that builds
BUILT = 0.04  # of the calls may compile

SOURCE = 'template <class T> __global__ void f(T* x) { *x = 1; }\nextern "C" __global__ void g() {}'
KNOWN: dict[str, Any] = {"source": SOURCE, "arch": "sm_90", "name_expressions": ["f<float>"]}
REQUEST = CompileRequest(**KNOWN)
LIBRARY = KernelLibrary("no_such_package")

# Valid arguments of the exported callables that have required ones.
RIGHT: dict[str, dict[str, Any]] = {
    "compile": KNOWN,
    "CompileRequest": KNOWN,
    "RawModule": {"code": SOURCE, "arch": "sm_90", "name_expressions": ["f<float>"]},
    "RawKernel": {"code": SOURCE, "name": "g", "arch": "sm_90"},
    "compile_many": {"builds": [REQUEST], "progress": False},
    "submit_many": {"builds": [REQUEST]},
    "KernelModule": {"library": LIBRARY, "source": "k.cu", "kernels": {"g": "int n"}},
    "Installation": {"ours": False},
}
NAMES = {*rtcompile._HOME} - rtcompile._NOT_LISTED - {"install", "uninstall"}


# A call, and its arguments for a message.
Call = tuple[Callable[[], object], dict[str, Any]]


def parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters that have a name; none of a callable in C, which tells of none."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:
        return []
    return [each for each in found if each.kind not in variable]


def used(made: Any) -> object:
    """Use what a call returned, as far as that needs no device."""
    if isinstance(made, CompileRequest):
        assert made.link or pickle.loads(pickle.dumps(made)) == made
    elif isinstance(made, rtcompile.RawModule) and build_of(made).request is not None:
        return build_of(made).request.arch and made.object_code
    return repr(made) if isinstance(made, ObjectCode) else made


class Calls:
    """Creates calls: an entry with arguments, some valid and some invalid."""

    def __init__(self, seed: int, known: ObjectCode, folder: Path, package: Package) -> None:
        self.chance = random.Random(seed)
        self.known = known
        self.folder = folder
        self.package = package
        self.values = values(known)
        self.odd = 0.0  # chance of a value of an unrelated type
        self.functions: dict[str, Callable[..., object]] = {
            **{name: rtcompile._load(name) for name in sorted(NAMES)},
            "Arch.parse": Arch.parse,
            "Report.of": Report.of,
            "bundle": bundling.bundle,
            "override": Settings("").override,
            "replace": CompileRequest(**KNOWN).replace,
        }
        self.right = {
            **RIGHT,
            "Report.of": {"code": known},
            "bundle": {"targets": [package.name], "path": folder / "b", "archs": ["sm_80"]},
        }
        others = (self.library, self.signature, self.environment)
        self.entries = [*[self.function] * 12, *others, self.crafted_bundle, self.crafted_record]

    def make(self) -> tuple[str, Call]:
        """Return a call and the name of its entry; some are nearly valid, some entirely invalid."""
        self.odd = self.chance.choice((0.05, 0.3, 0.8))
        entry = self.chance.choice(self.entries)
        return entry.__name__, entry()

    def any(self) -> Any:
        return self.chance.choice(self.values)()

    def one(self, *typed: Any) -> Any:
        """Return one of the typed values, or any value."""
        is_any = not typed or self.chance.random() < self.odd
        return self.any() if is_any else self.chance.choice(typed)

    def some(self, make: Callable[[], Any], most: int = 4) -> Any:
        """Return a container of several values, or any value."""
        if self.chance.random() < self.odd / 2:
            return self.any()
        made = [make() for _ in range(self.chance.randint(0, most))]
        return self.chance.choice((list, tuple, iter))(made)

    def flags(self) -> Any:
        return self.some(lambda: self.one(*OPTIONS))

    def typed(self) -> dict[str, Callable[[], Any]]:
        """Return functions that make arguments, by the names of the parameters."""
        texts = {
            "source": (SOURCE, "", "mistake", "#include <nowhere>", "scale.cu", "../x"),
            "code": (SOURCE, "", "mistake", self.known),
            "arch": ("sm_90", "sm_80", "compute_75", "90a", Arch(12, 0)),
            "name": ("a.cu", "g", "dir/a.cu", "/", "x" * 300),
            "fallback": ("auto", "never"),
            "pch": (True, False, 0),
            "timeout": (3, 0.5, "2"),
            "memory_limit": ("2G", 1 << 31),
            "backend": ("auto", "nvrtc", "nvcc"),
            "target": ("ptx", "ltoir", "object", "fatbin"),
            "errors": ("return",),
            "path": ("k.cubin", "made.rtcb"),
            "package": (self.package.name, "no_such", ".x"),
            "folder": ("", ".", "nowhere"),
            "bundle": ("kernels.rtcb",),
            "kernels": ({"fill": "float* x, float value"}, {"scale<float>": "float* x"}),
            "kernel": ("f<float>", "h"),
            "block": (128, 0, 2000),
            "dynamic_shared": (0, 1 << 20),
        }
        crafted = self.crafted()
        several = {
            "name_expressions": ("f<float>", "g", "f<int>"),
            "link": (self.known, SOURCE, __file__, crafted),
            "builds": (REQUEST, rtcompile.RawModule(code=SOURCE, arch="sm_90")),
            "include_dirs": ("", "nowhere"),
            "targets": (REQUEST, "no_such:x"),
            "archs": ("sm_80", "compute_80"),
        }
        return {
            **{name: partial(self.one, *given) for name, given in texts.items()},
            **{n: partial(self.some, partial(self.one, *given)) for n, given in several.items()},
            "options": self.flags,
            "log_stream": lambda: self.one(io.StringIO()),
            "progress": lambda: None if callable(value := self.one(False, 1)) else value,
        }

    def crafted(self) -> str:
        """Return the path of a file that begins like compiled code and continues with noise."""
        heads = b"\x50\xed\x55\xba", b"!<arch>\n", b".version 8.0\n", b"\xed\x43\x4e\x7f", b""
        begin = self.chance.choice((self.known.code, *heads))
        data = bytearray(begin[: self.chance.randint(0, len(begin))] + self.chance.randbytes(64))
        for _ in range(self.chance.randint(0, 8)):
            data[self.chance.randrange(len(data))] = self.chance.randrange(256)
        path = self.folder / f"crafted{self.chance.choice(('.cubin', '.cu', '.a', ''))}"
        path.write_bytes(data)
        return str(path)

    # --- the entries ---------------------------------------------------------------------

    def function(self) -> Call:
        """Call any function or class with valid arguments, of which one to three are replaced."""
        name = self.chance.choice([*self.functions, *("compile", "RawModule", "replace") * 3])
        function, typed = self.functions[name], self.typed()
        found = parameters(function)
        given = dict(self.right.get(name, {}))
        replaced = self.chance.sample(found, min(len(found), self.chance.randint(1, 3)))
        if name not in self.right:
            replaced += [each for each in found if each.default is inspect.Parameter.empty]
        for each in replaced:
            given[each.name] = typed.get(each.name, self.any)()
        if callable(given.get("progress")):  # a callable may raise anything
            del given["progress"]
        return lambda: used(function(**given)), {"function": name, **given}

    def library(self) -> Call:
        typed = self.typed()

        def arguments(known: dict[str, Any], *names: str) -> dict[str, Any]:
            chosen = self.chance.sample(names, self.chance.randint(1, 3))
            return {**known, **{name: typed[name]() for name in chosen}}

        library = arguments(
            *({"package": self.package.name}, "package", "folder"),
            *("options", "include_dirs", "bundle"),
        )
        module = arguments(
            {"source": "scale.cu", "kernels": {"fill": "float* x, float value"}},
            *("source", "kernels", "options"),
        )

        def call() -> object:
            made = KernelLibrary(**library).module(**module)
            return [made[name].check(made.compile("sm_80")) for name in made]

        return call, {**library, **module}

    def signature(self) -> Call:
        pieces = ["float", "int", "const", "::", *"* x,<>()[]&3"]
        text = "".join(self.chance.choices(pieces, k=self.chance.randint(0, 12)))
        args = self.some(lambda: self.one(1, 2.5, np.float32(1)), most=2)

        def signature() -> object:
            library = KernelLibrary(self.package.name)
            return library.module("scale.cu", {"fill": text})["fill"].arguments(args)

        return signature, {"signature": text, "args": args}

    def environment(self) -> Call:
        variables = {}
        for name in self.chance.sample(ENVIRONMENT, k=2):
            value = self.one("0", "1", "2G", "0.5", "info", "never", "\u0663", "relative")
            if isinstance(value, str) and "\0" not in value and "\ud800" not in value:
                variables[f"RTCOMPILE_{name}"] = str.__str__(value)
        variables["RTCOMPILE_JIT"] = "0"

        def environment() -> object:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in variables.items():
                    patch.setenv(name, value)
                Settings.from_environ()
                return rtcompile.compile(**KNOWN)

        return environment, variables

    def crafted_bundle(self) -> Call:
        """Return a function that crafts a bundle with invalid contents and a valid digest."""
        data = self.package.bundle.read_bytes()
        size = HEAD.unpack(data[: HEAD.size])[1]
        fields = [*(sealed.unseal(INDEX, "", data[HEAD.size : HEAD.size + size]) or ())]
        at = self.chance.randrange(len(fields))
        texts = bytes(fields[at]).split(b"\0")
        odd = [
            b"",
            b"-1",
            b"9" * 30,
            b"9" * 5000,
            b"x",
            b"\xff\xfe",
            b"1e9",
            b"sm_1000",
            b"\xc2\xb2",
        ]
        for _ in range(self.chance.randint(1, 2)):
            texts[self.chance.randrange(len(texts))] = self.chance.choice(odd)
        fields[at] = b"\0".join(texts)
        index = sealed.seal(INDEX, "", fields)
        path = self.folder / "crafted.rtcb"
        path.write_bytes(HEAD.pack(MAGIC, len(index)) + index + data[HEAD.size + size :])

        def crafted_bundle() -> object:
            forget_bundles()
            try:
                rtcompile.use_bundle(path)
                found = in_use()[0]
                with suppress(UnusableError):
                    for row in found.rows():
                        found.files(row, ()), found.object(row)
                return rtcompile.compile(**KNOWN)
            finally:
                forget_bundles()

        return crafted_bundle, {"index": fields[at]}

    def crafted_record(self) -> Call:
        """Return a function that crafts a record with values that `rtcompile run --record` does not write."""
        build = recording.RecordedBuild.of(CompileRequest(**KNOWN), self.known).encode()
        build["headers"] = [["user0", "a.cuh", str(self.folder / "../a.cuh"), "0" * 64]]
        document: dict[str, Any] = {"format": recording.FORMAT, "headers": {}, "builds": [build]}
        odd = [None, 3, -1, "", "x", "\0", "/proc/nowhere", [], {}, ["x"], [3], "user0", True, "é"]
        for _ in range(self.chance.randint(0, 2)):
            node: Any = document
            while True:
                at = self.chance.choice([*(node if isinstance(node, dict) else range(len(node)))])
                inner = node[at]
                if not isinstance(inner, (dict, list)) or not inner or self.chance.random() < 0.2:
                    break
                node = inner
            node[at] = copy.deepcopy(self.chance.choice(odd))
        path = self.folder / "crafted.json"
        path.write_text(json.dumps(document))

        def crafted_record() -> object:
            return recording.warm(recording.read(str(path)), progress=False)

        return crafted_record, {"record": document}


class TooLong(BaseException):
    """A call exceeded its time."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def wrong_with(call: Callable[[], object]) -> str:
    """Make a call; return a description of a wrong end, or "" if there is none."""
    try:
        with within(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except RtcompileError as error:
        first = str(error).partition("\n")[0]
        try:
            str(error).encode()
        except UnicodeEncodeError:
            return f"a message that cannot be printed: {error!r}"
        return "" if first.strip() else "an empty first line"
    except TooLong:
        return "no end"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def reported(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:
        return type(value).__name__


@pytest.mark.parametrize("seed", range(CHUNKS))
def test_a_call_ends_in_a_result_or_an_rtcompile_error(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The checks of `doctor` have their own tests, and take seconds for any argument.
    for what in ("toolkit_parts", "packages", "cache_checks"):
        monkeypatch.setattr(f"rtcompile.checkup.checks.{what}", lambda *_: ())
    for what in ("precompiled", "builds"):
        monkeypatch.setattr(f"rtcompile.checkup.{what}", lambda *_: ())
    package = Package(tmp_path, "fuzzed_kernels", monkeypatch)
    package.load()
    bundling.bundle([CompileRequest(**KNOWN), package.name], package.bundle, archs=["sm_90"])
    known = rtcompile.compile(**KNOWN)
    calls = Calls(seed, known, tmp_path, package)
    bad = []
    for _ in range(CALLS):
        entry, (call, arguments) = calls.make()
        monkeypatch.setenv("RTCOMPILE_JIT", "1" if calls.chance.random() < BUILT else "0")
        # A crafted source may never finish compiling, so there is a limit.
        monkeypatch.setenv("RTCOMPILE_TIMEOUT", "5")
        problem = wrong_with(call)
        forget_bundles()  # `use_bundle` may have loaded one
        if problem:
            shown = ", ".join(f"{name}={reported(value)}" for name, value in arguments.items())
            bad.append(f"{entry}({shown}): {problem}")
    record("call with fuzzed arguments", CALLS, len(bad))
    assert not bad, "\n".join(bad)
