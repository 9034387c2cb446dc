"""Tests of reloading a kernel's file, with a fake driver and a real compiler."""

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")

import rtcompile  # noqa: E402
from rtcompile.extras.reload import code as reloading  # noqa: E402
from rtcompile.frontends import lazy_code, raw_kernel  # noqa: E402
from rtcompile.inspect import cubin  # noqa: E402
from tests.processes import functions_of  # noqa: E402

pytestmark = pytest.mark.needs_compiler


class NotFound(cupy.cuda.driver.CUDADriverError):  # type: ignore[misc]
    def __init__(self) -> None:
        self.status = 500


class Module:
    """A fake of a loaded module whose functions return its code."""

    def __init__(self, code: bytes, names: Any) -> None:
        self.code, self.mapping = code, dict(names)

    def get_function(self, name: str) -> Any:
        if name not in {kernel.name for kernel in cubin.read(self.code).kernels}:
            raise NotFound
        return lambda *args, **how: ran.append((self.code, name))


ran: list[tuple[bytes, str]] = []


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    monkeypatch.setattr(lazy_code, "_load", Module)
    monkeypatch.setattr(lazy_code, "ordinal", lambda loading=False: 0)
    monkeypatch.setattr(raw_kernel, "ordinal", lambda loading=False: 0)
    monkeypatch.setattr(raw_kernel, "current_device", lambda: 0)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=0))
    monkeypatch.setattr(reloading, "_POLL_SECONDS", 0)


def source(value: int, include: str = "") -> str:
    return f'{include}\nextern "C" __global__ void k(int* x) {{ *x = {value}; }}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "k.cu"
    file.write_text(source(1))
    return file


@pytest.fixture
def kernel(file: Path) -> Any:
    return rtcompile.RawModule.from_file(file, reload=True, arch="sm_90a").get_function("k")


def launched(kernel: Any) -> bytes:
    """Launch; return the code that ran."""
    kernel((1,), (1,), ())
    return ran[-1][0]


def test_an_edit_is_in_the_next_launch(kernel, file):
    first = launched(kernel)
    assert launched(kernel) is first
    file.write_text(source(2))
    second = launched(kernel)
    assert second != first
    file.write_text(source(1))
    assert launched(kernel) == first


def test_an_edit_of_a_header_is_in_the_next_launch(file):
    header = file.with_name("value.h")
    header.write_text("#define VALUE 1")
    file.write_text('#include "value.h"\nextern "C" __global__ void k(int* x) { *x = VALUE; }')
    kernel = rtcompile.RawModule.from_file(file, reload=True, arch="sm_90a").get_function("k")
    first = launched(kernel)
    header.write_text("#define VALUE 2")
    assert launched(kernel) != first


def test_without_reload_an_edit_has_no_effect(file):
    kernel = rtcompile.RawModule.from_file(str(file), arch="sm_90a").get_function("k")
    first = launched(kernel)
    file.write_text(source(2))
    assert launched(kernel) is first
    assert type(functions_of(kernel)) is dict


def test_a_failing_edit_is_shown_once_and_the_old_kernel_runs_on(kernel, file, capsys):
    first = launched(kernel)
    file.write_text("\n" + source(2).replace(";", ""))
    assert launched(kernel) is first
    assert launched(kernel) is first
    shown = capsys.readouterr().err
    assert shown.startswith(f"{file}:3:")
    assert shown.count("was not reloaded; the kernels built before stay in use.") == 1
    file.write_text(source(3))
    assert launched(kernel) != first
    assert not capsys.readouterr().err


def test_an_edit_that_removes_the_kernel_fails(kernel, file, capsys):
    first = launched(kernel)
    file.write_text(source(2).replace("k(", "other("))
    assert launched(kernel) is first
    assert "k" in capsys.readouterr().err.partition("\n")[0]


def test_a_missing_header_is_searched_again(kernel, file, capsys):
    first = launched(kernel)
    file.write_text(source(2, '#include "new.h"'))
    assert launched(kernel) is first
    assert "new.h" in capsys.readouterr().err
    file.with_name("new.h").write_text("#error not yet")
    assert launched(kernel) is first
    file.with_name("new.h").write_text("")
    assert launched(kernel) != first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda file: None, "No such file", id="vanished"),
        pytest.param(lambda file: file.touch(), "the file is empty", id="not yet written"),
        pytest.param(lambda file: file.symlink_to("nowhere"), "No such file", id="dangling link"),
        pytest.param(lambda file: os.mkfifo(file), "not a regular file", id="pipe"),
        pytest.param(lambda file: file.mkdir(), "not a regular file", id="folder"),
        pytest.param(lambda file: file.write_bytes(b"\n\xff"), ":2: error: not UTF-8", id="bytes"),
    ],
)
def test_an_invalid_file_keeps_the_old_kernels_and_is_reported_once(
    kernel, file, monkeypatch, capsys, change, message
):
    first = launched(kernel)
    file.unlink()
    change(file)
    assert launched(kernel) is first
    assert not capsys.readouterr().err  # an editor may still be writing
    monkeypatch.setattr(reloading, "_GONE_SECONDS", 0)
    assert launched(kernel) is first
    assert launched(kernel) is first
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("was not reloaded") == 1
    other = file.with_name("other.cu")
    other.write_text(source(5))
    file.rmdir() if file.is_dir() else file.unlink(missing_ok=True)
    file.symlink_to(other)
    assert launched(kernel) != first


def test_an_instance_of_a_template_keeps_its_name_when_its_symbol_changes(file):
    file.write_text("template <class T> __global__ void f(T* x) { *x = 1; }")
    module = rtcompile.RawModule.from_file(
        file, reload=True, arch="sm_90a", name_expressions=["f<int>"]
    )
    kernel = module.get_function("f<int>")
    launched(kernel)
    file.write_text("template <class T> __global__ void f(T* x, float y) { *x = y; }")
    launched(kernel)
    assert [name for _, name in ran] == ["_Z1fIiEvPT_", "_Z1fIiEvPT_f"]


def test_a_file_that_never_built_raises_until_it_builds(file):
    file.write_text("no C++")
    module = rtcompile.RawModule.from_file(file, reload=True, arch="sm_90a")
    for _ in range(2):
        with pytest.raises(rtcompile.CompileError):
            module.get_function("k")
    file.write_text(source(1))
    assert launched(module.get_function("k"))


def test_the_file_is_looked_at_no_more_than_twenty_times_a_second(kernel, file, monkeypatch):
    monkeypatch.setattr(reloading, "_POLL_SECONDS", 60)
    first = launched(kernel)
    file.write_text(source(2))
    assert launched(kernel) is first


def test_nothing_is_loaded_while_a_stream_is_captured(kernel, file, monkeypatch):
    first = launched(kernel)
    file.write_text(source(2))
    stream = SimpleNamespace(ptr=7, is_capturing=lambda: True)
    with monkeypatch.context() as during:
        during.setattr(cupy.cuda, "get_current_stream", lambda: stream)
        assert launched(kernel) is first
    assert launched(kernel) != first


def test_a_launch_during_a_build_uses_the_old_kernel(kernel, file, monkeypatch):
    first = launched(kernel)
    file.write_text(source(2))
    building, go_on = threading.Event(), threading.Event()
    compiled = lazy_code.LazyCode.compiled

    def slowly(*args: Any) -> Any:
        building.set()
        assert go_on.wait(30)
        return compiled(*args)

    monkeypatch.setattr(lazy_code.LazyCode, "compiled", slowly)
    other = threading.Thread(target=launched, args=(kernel,))
    other.start()
    assert building.wait(30)
    assert launched(kernel) is first
    go_on.set()
    other.join()
    assert launched(kernel) != first


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path):
    with pytest.raises(rtcompile.InvalidRequest, match=r"gone\.cu: No such file"):
        rtcompile.RawModule.from_file(tmp_path / "gone.cu", reload=True)


def test_ipythons_autoreload_and_ours_work_together(file, monkeypatch):
    pytest.importorskip("IPython")
    from IPython.extensions.autoreload import ModuleReloader

    script = file.with_name("my_kernels.py")
    text = (
        "from rtcompile import RawModule\n"
        f"module = RawModule.from_file({str(file)!r}, reload=True, arch='sm_90a')\n"
        "def run():\n    module.get_function('k')((1,), (1,), ())\n"
    )
    script.write_text(text)
    monkeypatch.syspath_prepend(str(file.parent))
    reloader = ModuleReloader()
    import my_kernels  # type: ignore[import-not-found]

    try:
        run, module = my_kernels.run, my_kernels.module
        reloader.check(check_all=True)
        run()
        file.write_text(source(2))
        run()
        assert ran[0] != ran[1]
        script.write_text(text + "EDITED = True\n")
        os.utime(script, (0, 2_000_000_000))
        reloader.check(check_all=True)
        assert my_kernels.EDITED
        file.write_text(source(3))
        run()
        module.get_function("k")((1,), (1,), ())
        assert ran[2] == ran[3] != ran[1]
    finally:
        del sys.modules["my_kernels"]
