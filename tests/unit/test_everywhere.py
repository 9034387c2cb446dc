"""All of CuPy through rtcompile, as far as that goes without a device."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")

from cupy.cuda import compiler, function  # noqa: E402

import rtcompile  # noqa: E402
from rtcompile.building import pipeline  # noqa: E402
from rtcompile.cache import answers  # noqa: E402
from rtcompile.cli import main  # noqa: E402
from rtcompile.everywhere import recording, seam, warming  # noqa: E402
from rtcompile.everywhere.running import counting  # noqa: E402

CODE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
TEMPLATE = "template <class T> __global__ void f(T* x) { *x += 1; }"
ORIGINAL = compiler._compile_module_with_cache

# What a CuPy without a device needs to get as far as its compiler: an architecture, and a module
# that takes code without loading it.
STAND_IN = """
import cupy.cuda.compiler as compiler, cupy.cuda.function as function
class Module:
    def load(self, code): self.code = code
    def _set_mapping(self, mapping): self.mapping = mapping
function.Module = Module
compiler._get_arch = lambda: "80"
compiler._get_arch_for_options_for_nvrtc = lambda arch=None: ("-arch=sm_80", "cubin")
def compile(source, options=(), **more):
    return compiler._compile_module_with_cache(source, options, **more)
"""


class Module:
    """Takes code as ``cupy.cuda.function.Module`` does, and loads nothing."""

    code = b""
    mapping: object = "unset"

    def load(self, code: bytes) -> None:
        self.code = code

    def _set_mapping(self, mapping: object) -> None:
        self.mapping = mapping


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(function, "Module", Module)
    monkeypatch.setattr(compiler, "_get_arch", lambda: "80")
    monkeypatch.setattr(
        compiler, "_get_arch_for_options_for_nvrtc", lambda arch: (f"-arch=sm_{arch}", "cubin")
    )
    with rtcompile.install():
        yield compiler._compile_module_with_cache
    assert compiler._compile_module_with_cache is ORIGINAL


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(STAND_IN + textwrap.dedent(text))
    return str(path)


def run(*arguments: str, cache: Path, **more: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "rtcompile", *arguments],
        env={**os.environ, "RTCOMPILE_CACHE_DIR": str(cache), **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_cupys_compile_gives_the_code_that_rtcompile_gives(installed):
    module = installed(CODE, ("-DN=1",))

    same = rtcompile.compile(CODE, options=("-DN=1",), arch="sm_80", name="twice.cu")
    assert (module.code, module.mapping) == (same.code, None)
    assert same.build.hit


def test_name_expressions_are_mapped(installed):
    module = installed(TEMPLATE, name_expressions=["f<float>", "f<int>"])

    assert module.mapping == {"f<float>": "_Z1fIfEvPT_", "f<int>": "_Z1fIiEvPT_"}


def test_what_was_built_before_is_found_on_the_short_road(installed, monkeypatch):
    built = installed(TEMPLATE, name_expressions=["f<float>"])
    monkeypatch.setattr(answers, "_environment", None)
    monkeypatch.setattr(pipeline, "build", lambda *_: pytest.fail("the full road was taken"))

    again = installed(TEMPLATE, name_expressions=["f<float>"])

    assert (again.code, again.mapping) == (built.code, built.mapping)


def test_an_error_is_cupys(installed):
    with pytest.raises(compiler.CompileException, match="undefined") as caught:
        installed("__global__ void k() { nothing(); }")

    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_lto_ir_is_left_to_cupy(monkeypatch, installed):
    asked = []
    monkeypatch.setattr(seam, "_original", lambda *given, **more: asked.append(more))

    installed(CODE, to_ltoir=True)

    assert asked[0]["to_ltoir"] is True
    monkeypatch.undo()


def test_installing_twice_is_installing_once():
    outer = rtcompile.install()
    with rtcompile.install() as inner:
        assert inner.active
    assert compiler._compile_module_with_cache is not ORIGINAL
    rtcompile.uninstall()
    rtcompile.uninstall()
    assert outer.active
    assert compiler._compile_module_with_cache is ORIGINAL


def test_many_threads_install_once():
    threads = [threading.Thread(target=rtcompile.install) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rtcompile.uninstall()

    assert compiler._compile_module_with_cache is ORIGINAL


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda patch: patch.setattr("cupy._version.__version__", "15.0.0"), id="15"),
        pytest.param(
            lambda patch: patch.setattr(compiler, "_compile_module_with_cache", lambda s: s),
            id="other arguments",
        ),
        pytest.param(
            lambda patch: patch.delattr(compiler, "_compile_module_with_cache"), id="no seam"
        ),
    ],
)
def test_a_cupy_that_is_not_known_is_left_alone(monkeypatch, change):
    change(monkeypatch)
    before = getattr(compiler, "_compile_module_with_cache", None)

    with pytest.warns(rtcompile.RtcompileWarning, match="CuPy compiles its kernels itself"):
        installation = rtcompile.install()

    assert not installation.active
    assert getattr(compiler, "_compile_module_with_cache", None) is before


# --- record and warm -----------------------------------------------------------------------------


@pytest.fixture
def header(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "include" / "scale.cuh"
    path.parent.mkdir(parents=True)
    path.write_text("#define SCALE 3\n")
    return path


def test_what_was_recorded_is_built_elsewhere_and_then_nothing_is_missing(
    tmp_path, header, monkeypatch
):
    script = program(
        tmp_path,
        f"""
        compile('#include "scale.cuh"\\n__global__ void k(float* x) {{ *x = SCALE; }}',
                ("-I{header.parent}",))
        compile({TEMPLATE!r}, name_expressions=["f<float>"])
        """,
    )
    record = tmp_path / "kernels.json"
    done = run("run", "--record", str(record), script, cache=tmp_path / "first")
    assert done.returncode == 0, done.stderr
    assert "2 builds recorded" in done.stderr
    header.rename(tmp_path / "gone.cuh")

    warmed = run("warm", str(record), "--json", cache=tmp_path / "second")
    assert json.loads(warmed.stdout)["records"][0]["built"] == 2, warmed.stderr

    (tmp_path / "gone.cuh").rename(header)
    checked = run("run", "--record", str(record), "--check", script, cache=tmp_path / "second")
    assert checked.returncode == 0, checked.stderr
    assert "complete (2 builds in the record)" in checked.stderr


def test_a_check_without_the_builds_names_what_is_missing(tmp_path):
    script = program(
        tmp_path,
        f"""
        try:
            compile({CODE!r})
        except Exception:
            pass
        """,
    )

    done = run("run", "--check", script, cache=tmp_path / "empty")

    assert done.returncode == 1
    assert "not there: twice.cu" in done.stderr


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        pytest.param("", 0, id="its end"),
        pytest.param("raise SystemExit(7)", 7, id="sys.exit"),
        pytest.param("raise ValueError('mine')", 1, id="an exception"),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            128 + signal.SIGTERM,
            id="a signal",
        ),
        pytest.param(
            f"import threading; threading.Thread(target=lambda: compile({TEMPLATE!r})).start()",
            0,
            id="in a thread",
        ),
        pytest.param(
            f"import os\nif not os.fork():\n    compile({TEMPLATE!r})\n    os._exit(0)\nos.wait()",
            0,
            id="a forked child",
        ),
    ],
)
def test_a_program_is_recorded_however_it_ends(tmp_path, ending, status):
    text = f"compile({CODE!r})\n{ending}\n"
    script = tmp_path / "program.py"
    script.write_text(STAND_IN + text)
    record = tmp_path / "kernels.json"

    done = run("run", "--record", str(record), str(script), cache=tmp_path / "cache")

    assert done.returncode == status, done.stderr
    others = TEMPLATE in text
    assert len(recording.read(str(record)).builds) == 1 + others
    if "mine" in ending:
        assert "rtcompile" not in done.stderr.partition("ValueError: mine")[0]


def test_a_killed_program_leaves_what_it_had_asked_for(tmp_path):
    script = program(
        tmp_path,
        f"compile({CODE!r})\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    )
    record = tmp_path / "kernels.json"

    run("run", "--record", str(record), script, cache=tmp_path / "cache")

    assert not record.exists()
    assert len(recording.read(f"{record}.part").builds) == 1


def test_a_program_sees_itself_as_python_runs_it(tmp_path):
    script = program(
        tmp_path,
        """
        import sys
        print(sys.argv, __name__, sys.path[0], "rtcompile.cli" in str(sys.modules["__main__"]))
        """,
    )

    done = run("run", script, "--record", "x", "--", "-y", cache=tmp_path)

    argv = [script, "--record", "x", "--", "-y"]
    assert done.stdout == f"{argv} __main__ {tmp_path} False\n", done.stderr


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param('{"format": "rtcompile record 1", "buil', "no record", id="truncated"),
        pytest.param('{"format": "somebody else"}', "somebody else", id="foreign"),
        pytest.param('{"format": "rtcompile record 9", "builds": []}', "record 9", id="newer"),
        pytest.param("", "no record", id="empty"),
        pytest.param(
            '{"format": "rtcompile record 1", "builds": [{"source": 1}], "headers": {}}',
            "damaged",
            id="damaged",
        ),
    ],
)
def test_a_record_that_is_none_is_refused_in_one_line(tmp_path, capsys, text, what):
    path = tmp_path / "kernels.json"
    path.write_text(text)

    assert main(["warm", str(path)]) == 2
    assert what in capsys.readouterr().err


def test_a_header_that_was_tampered_with_is_not_built(tmp_path, header, installed):
    source = '#include "scale.cuh"\n__global__ void k(float* x) { *x = SCALE; }'
    recorder = recording.Recorder(str(tmp_path / "kernels.json"))
    recorder.start()
    installed(source, (f"-I{header.parent}",))
    record = recorder.finish()
    header.unlink()
    record.headers = dict.fromkeys(record.headers, "")

    with pytest.raises(rtcompile.InvalidRequest, match="lacks the contents of a header"):
        warming.warm(record, progress=False)


def test_other_architectures_are_for_what_follows_the_device(tmp_path, installed):
    recorder = recording.Recorder(str(tmp_path / "kernels.json"))
    recorder.start()
    installed(CODE)
    rtcompile.compile(TEMPLATE, arch="sm_75", name_expressions=["f<int>"])
    record = recorder.finish()

    with warming.requests(record, ["sm_90a", "sm_100a"]) as requests:
        assert [str(request.arch) for request in requests] == ["sm_90", "sm_100", "sm_75"]


def test_what_the_cache_spared_is_told(installed):
    installed(CODE)
    with counting() as tally:
        installed(CODE)

    assert tally.builds[0].spared > 0
    assert tally.line().startswith("1 kernel: 1 from the cache, 0 built")


def test_a_bundle_of_a_record_answers_where_nothing_is_cached(tmp_path):
    script = program(tmp_path, f"compile({CODE!r})")
    record, bundle = tmp_path / "kernels.json", tmp_path / "kernels.rtc"
    run("run", "--record", str(record), script, cache=tmp_path / "first")

    made = run("bundle", str(record), "-o", str(bundle), cache=tmp_path / "second")
    assert made.returncode == 0, made.stderr

    checked = run("run", "--check", script, cache=tmp_path / "empty", RTCOMPILE_BUNDLES=str(bundle))
    assert checked.returncode == 0, checked.stderr
    assert "1 from the cache" in checked.stderr


def test_under_jitify_the_working_directory_is_searched_too(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/k.cuh").write_text("")
    monkeypatch.chdir(tmp_path)
    source = '#include "models/k.cuh"\n' + CODE
    assert compiler._compile_module_with_cache(source, jitify=True).code
    with pytest.raises(rtcompile.CompileError, match="models"):
        compiler._compile_module_with_cache(source)
