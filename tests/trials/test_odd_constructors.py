"""Every exported callable, with arguments of every kind, returns a value or raises an rtcompile error."""

import inspect
import random
import traceback
from typing import Any

import pytest

import rtcompile
from rtcompile import CompileRequest, RtcompileError
from tests.processes import forget_bundles
from tests.trials.odd_values import values
from tests.trials.record import record, times

pytest.importorskip("cupy")

SOURCE = 'extern "C" __global__ void g() {}'
CALLS = times(600, 10_000)
# Valid arguments of the callables besides the odd one.
REQUEST = CompileRequest(SOURCE, arch="sm_80")
LIBRARY = rtcompile.KernelLibrary("no_such_package")
RIGHT: dict[str, dict[str, Any]] = {
    "compile": {"source": SOURCE, "arch": "sm_80"},
    "RawModule": {"code": SOURCE, "arch": "sm_80"},
    "RawKernel": {"code": SOURCE, "name": "g", "arch": "sm_80"},
    "CompileRequest": {"source": SOURCE, "arch": "sm_80"},
    "compile_many": {"builds": [REQUEST], "progress": False},
    "submit_many": {"builds": [REQUEST]},
    "KernelModule": {"library": LIBRARY, "source": "k.cu", "kernels": {"g": "int n"}},
    "Installation": {"ours": False},
}
# `SharedStore` is a protocol, which has no instances.
NAMES = sorted({*rtcompile._HOME} - rtcompile._NOT_LISTED - {"install", "uninstall", "SharedStore"})


def arguments(name: str, chance: random.Random, odd: list[Any]) -> dict[str, Any]:
    """Return valid arguments and one odd one, or only odd ones."""
    kinds = inspect.Parameter
    found = [
        each
        for each in inspect.signature(rtcompile._load(name)).parameters.values()
        if each.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    if name in RIGHT and chance.random() < 0.6:
        given = {**RIGHT[name], chance.choice(found).name: chance.choice(odd)()}
    else:
        needed = [each for each in found if each.default is kinds.empty or chance.random() < 0.3]
        given = {each.name: chance.choice(odd)() for each in needed}
    if callable(given.get("progress")):  # a callable may raise anything
        del given["progress"]
    return given


@pytest.mark.filterwarnings("ignore")
def test_an_exported_callable_raises_only_rtcompile_errors(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    # The checks of `doctor` have their own tests, and take seconds for any argument.
    for what in ("toolkit_parts", "packages", "cache_checks"):
        monkeypatch.setattr(f"rtcompile.checkup.checks.{what}", lambda *_: ())
    for what in ("workers", "probes"):
        monkeypatch.setattr(f"rtcompile.checkup.probing.{what}", lambda *_: ())
    known = rtcompile.compile(SOURCE, arch="sm_80")
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    odd, chance, bad = values(known), random.Random(3), []
    for _ in range(CALLS):
        name = chance.choice(NAMES)
        try:
            given = arguments(name, chance, odd)
        except ValueError:  # implemented in C, without a signature
            continue
        forget_bundles()  # `use_bundle` may have loaded one
        try:
            rtcompile._load(name)(**given)
        except RtcompileError as error:
            if not str(error).strip():
                bad.append(f"{name}: an empty message")
        except Exception:
            shown = ", ".join(f"{key}: {type(value).__name__}" for key, value in given.items())
            bad.append(f"{name}({shown}): {traceback.format_exc(limit=-2)}")
    forget_bundles()
    record("exported callable with an odd argument", CALLS, len(bad))
    assert not bad, "\n".join(bad[:8])
