"""Tests of the public names: all returned types are exported, and all examples run."""

import ast
import doctest
import errno
import inspect
import os
import pickle
import re
import sys
import traceback
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.request.values import Arch
from tests.processes import python, ran

PACKAGE = Path(rtcompile.__file__).parent
CLASSES = {
    node.name
    for file in PACKAGE.rglob("*.py")
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
}
TYPES = dir(rtcompile.types)
EXPORTED = [
    *(name for name in dir(rtcompile) if name not in ("__version__", *rtcompile._MODULES)),
    *(f"messages.{name}" for name in dir(rtcompile.messages)),
    *(f"types.{name}" for name in TYPES),
]
VALUES = dict(zip(EXPORTED, attrgetter(*EXPORTED)(rtcompile), strict=True))


def returned_by(value: Any) -> Iterator[str]:
    """Yield the return annotations of a function, or the annotations of a class's members."""
    if inspect.isclass(value):
        documented = set(re.findall(r"\w+", value.__doc__ or ""))
        annotations = vars(value).get("__annotations__", {})
        yield from (str(text) for key, text in annotations.items() if key in documented)
        for key, member in vars(value).items():
            if key[0] != "_" or key in ("__call__", "__getitem__"):
                yield from returned_by(
                    getattr(member, "fget", None)
                    or getattr(member, "func", None)
                    or getattr(member, "__func__", member)
                )
    elif callable(value):
        yield str(getattr(inspect.unwrap(value), "__annotations__", {}).get("return", ""))


def test_every_type_that_a_public_name_returns_is_exported():
    assert not {
        (name, word)
        for name, value in VALUES.items()
        for text in returned_by(value)
        for word in re.findall(r"\w+", text)
        if word in CLASSES and not {word, f"types.{word}"} & {*EXPORTED}
    }


def test_every_public_name_has_its_own_docstring():
    assert not [
        name
        for name, value in VALUES.items()
        if not (vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__)
    ]


# Callers only receive errors and most types; the examples of their sources show them.
WITH_EXAMPLES = [
    name
    for name, value in VALUES.items()
    if not name.startswith("types.") or name == "types.Diagnostic"
    if not (inspect.isclass(value) and issubclass(value, BaseException))
]


def test_a_type_of_results_has_one_name():
    for name in TYPES:
        assert (name, getattr(rtcompile.types, name).__module__) == (name, "rtcompile.types")
        assert name not in dir(rtcompile)
        assert not hasattr(rtcompile, name)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_its_example_runs(name, monkeypatch, tmp_path):
    """Lines that need a GPU are marked ``# doctest: +SKIP``."""
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(VALUES[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, {"rtcompile": rtcompile}, name, None, None)
    assert example.examples
    output: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=output.append)
    assert not result.failed, "".join(output)


def test_a_star_import_leaves_pythons_own_functions():
    names: dict[str, Any] = {}
    exec("from rtcompile import *", names)
    assert names["RawModule"] is rtcompile.RawModule
    assert names.get("compile", compile) is compile
    assert callable(rtcompile.compile)


def test_doctor_is_a_function_however_the_package_was_used_before():
    program = (
        "import rtcompile.checkup.checks, rtcompile.cli; from rtcompile import doctor, explain; "
    )
    program += "print([c.status for c in doctor(probes=False)] and explain('x')[0].message)"
    done = python(program)
    assert done.stdout == "x\n", done.stderr


def test_classes_are_named_as_their_users_import_them():
    with pytest.raises(rtcompile.InvalidRequest) as caught:
        rtcompile.compile(3)  # type: ignore[arg-type]
    assert "".join(traceback.format_exception_only(caught.value)).startswith(
        "rtcompile.InvalidRequest: "
    )
    assert repr(rtcompile.ObjectCode) == "<class 'rtcompile.ObjectCode'>"
    again = pickle.loads(pickle.dumps(rtcompile.CompileError("no")))
    assert type(again) is rtcompile.CompileError


def test_an_unknown_variable_is_named_with_the_nearest_at_the_callers_line(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import rtcompile\n\nrtcompile.cache.why('', arch='sm_80')\n")
    variables = {"RTCOMPILE_CACHE_DRI": "x", "RTCOMPILE_CACHE_DIR": tmp_path / "cache"}
    done = ran(sys.executable, program, environ=variables, check=True)
    assert done.stderr.startswith(
        f"{program}:3: RtcompileWarning: RTCOMPILE_CACHE_DRI is not a variable"
    )
    assert "is not a variable of rtcompile; is RTCOMPILE_CACHE_DIR meant?\n" in done.stderr


SOURCE = 'extern "C" __global__ void k(float* x) { *x = 1; }'


@pytest.mark.needs_compiler
def test_every_object_with_code_reports_and_saves(tmp_path):
    module = rtcompile.RawModule(code=SOURCE, arch="sm_80")
    kernel = rtcompile.RawKernel(SOURCE, "k", arch="sm_80")
    code = rtcompile.compile(SOURCE, arch="sm_80")
    assert repr(rtcompile.RawModule(code=SOURCE, arch="sm_75")) == (
        "<RawModule kernel.cu, for sm_75, not built yet>"
    )
    for one in (code, module, kernel):
        assert one.report().kernels[0].name == "k"
        path = one.save(tmp_path / "k.cubin")
        assert Path(path).read_bytes() == code.code
        assert one.build.backend == "nvrtc"
    loaded = rtcompile.RawModule(path=tmp_path / "k.cubin")
    assert loaded.build.hit == "file"
    assert loaded.report().kernels[0].name == "k"
    assert repr(loaded) == f"<RawModule the file {tmp_path / 'k.cubin'}>"
    assert repr(kernel) == "<RawKernel k: kernel.cu, cubin for sm_80>"


def test_code_is_saved_completely_or_not_at_all(tmp_path, monkeypatch):
    def code(data: bytes) -> rtcompile.ObjectCode:
        return rtcompile.ObjectCode(data, "cubin", Arch.parse("sm_80"))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "k.cubin"
    code(b"old").save(path)
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "link").symlink_to(path.name)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
            code(b"new").save(path)
    assert (path.read_bytes(), len([*tmp_path.iterdir()])) == (b"old", 3)
    code(b"new").save(tmp_path / "link")
    assert (path.read_bytes(), (tmp_path / "link").is_symlink()) == (b"new", True)
    assert code(b"new").save("/dev/null") == "/dev/null"
    assert Path("/dev/null").is_char_device()
    with pytest.raises(FileNotFoundError, match=r"'/missing/k\.cubin'"):
        code(b"new").save("/missing/k.cubin")


@pytest.mark.needs_compiler
def test_the_cache_is_described_and_emptied_in_python(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "own"))
    request = rtcompile.CompileRequest(SOURCE, arch="sm_80")
    assert "no build of this source" in rtcompile.cache.why(request)
    code = rtcompile.compile(SOURCE, arch="sm_80")
    assert rtcompile.cache.why(SOURCE, arch="sm_80") == ""
    found = rtcompile.cache.info()
    assert (found.entries, found.directory) == (1, str(tmp_path / "own"))
    assert found.size >= len(code.code)
    assert rtcompile.cache.clear().entries == 1
    assert rtcompile.cache.info().entries == 0
    with pytest.raises(rtcompile.InvalidRequest, match="why takes a source"):
        rtcompile.cache.why(3)  # type: ignore[arg-type]
