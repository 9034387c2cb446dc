"""Tests of whole programs under `rtcompile run`: same behaviour, records, and builds from records."""

import json
import os
import py_compile
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.cli import main
from rtcompile.files.sealed import content_digest
from tests.processes import ran
from tests.programs import CODE, TEMPLATE, other_cupy, program, run, written_record
from tests.tables import from_table

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.needs_compiler


class Recorded(NamedTuple):
    """The run of a program with one build: its script, its record, its cache and what it printed."""

    script: str
    record: str
    cache: Path
    stderr: str


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    script, record = program(folder, f"compile({CODE!r})"), str(folder / "kernels.json")
    done = run("run", "--record", record, "--json", script, cache=folder / "cache")
    return Recorded(script, record, folder / "cache", done.stderr)


def test_a_record_is_built_in_another_cache_and_then_nothing_is_missing(
    tmp_path, header, monkeypatch, run_json
):
    """Each state of a header that the program writes, and relative folders as the program found them."""
    script = program(
        tmp_path,
        f"""
        import os
        source = '#include "scale.cuh"\\n__global__ void k(float* x) {{ *x = SCALE; }}'
        for scale in (1, 2, 1):
            open({str(header)!r}, "w").write(f"#define SCALE {{scale}}\\n")
            compile(source, ("-I{header.parent}",))
        os.chdir({str(header.parent.parent)!r})
        compile(source, ("-Iinclude", "-DNAME=include"))
        os.chdir("include")
        compile(source, jitify=True)  # it searches the working directory
        compile({TEMPLATE!r}, name_expressions=["f<float>"])
        """,
    )
    record = str(tmp_path / "kernels.json")
    done = run("run", "--record", record, script, cache=tmp_path / "first")
    assert done.returncode == 0, done.stderr
    assert "5 builds recorded" in done.stderr
    header.unlink()

    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "second"))
    code, fields = run_json("warm", record)
    assert (code, fields["records"][0]["built"]) == (0, 5), fields

    checked = run("run", "--check", script, cache=tmp_path / "second")
    assert checked.returncode == 0, checked.stderr
    assert "6 kernels: 6 from the cache, 0 built" in checked.stderr


def test_a_header_with_an_absolute_path_is_reported(tmp_path, header):
    source = f'#include "{header}"\\n__global__ void k(float* x) {{{{ *x = SCALE; }}}}'
    script = program(tmp_path, f"compile('{source}')")

    done = run("run", "--record", str(tmp_path / "kernels.json"), script, cache=tmp_path)

    assert f"{header}: included by its path on this machine" in done.stderr


def test_a_record_that_would_be_a_folder_is_rejected_before_the_program_runs(tmp_path):
    script = program(tmp_path, "print('ran')")
    done = run("run", "--record", str(tmp_path), script, cache=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Is a directory" in done.stderr
    done = run("run", "--check", "--record", str(tmp_path / "k.json"), script, cache=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr


def test_an_unrecordable_build_does_not_stop_the_program(tmp_path):
    record = tmp_path / "records" / "kernels.json"
    record.parent.mkdir()
    script = program(
        tmp_path,
        f"""
        import shutil
        shutil.rmtree({str(record.parent)!r})
        compile({CODE!r})
        print("ran on")
        """,
    )

    done = run("run", "--record", str(record), script, cache=tmp_path)

    assert done.stdout == "ran on\n", done.stderr
    assert (done.returncode, "was not written" in done.stderr) == (2, True), done.stderr


def test_a_record_contains_the_versions_used(recorded):
    document = json.loads(Path(recorded.record).read_text())

    nvrtc = toolkit.current().require_nvrtc().version
    assert (document["rtcompile"], document["cupy"]) == (rtcompile.__version__, cupy.__version__)
    assert nvrtc.startswith(f"{document['cuda']}.")
    assert not Path(f"{recorded.record}.part").exists()


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [("rtcompile", "rtcompile 0.0.1"), ("cupy", "CuPy 9.9"), ("cuda", "CUDA 9.9")],
)
def test_a_record_of_another_version_is_named_and_built(tmp_path, recorded, capsys, name, sentence):
    document = json.loads(Path(recorded.record).read_text())
    then = sentence.split()[1]
    document[name] = then
    if name == "cuda":
        document["builds"][0]["compiler"] = f"nvrtc {then}.1"
    (tmp_path / "kernels.json").write_text(json.dumps(document))

    assert main(["warm", str(tmp_path / "kernels.json")]) == 0

    printed = capsys.readouterr().err
    assert f"was recorded with {sentence}, and here is" in printed
    assert printed.count("recorded with") == 1
    assert "1 of 1 compiled" in printed  # though it is no terminal


@pytest.mark.some(1)
@pytest.mark.parametrize("way", ["--json", "--check"])
def test_a_program_with_an_unknown_cupy_is_unaffected(tmp_path, way):
    other_cupy(tmp_path)
    script = tmp_path / "program.py"
    script.write_text(
        "import warnings; warnings.simplefilter('error')\n"
        "import cupy.cuda.compiler as compiler\n"
        "print(compiler._compile_module_with_cache.__module__)\n"
    )

    done = run("run", way, str(script), cache=tmp_path)

    assert done.stdout == "cupy.cuda.compiler\n", done.stderr
    assert "CuPy 15.0.0 has no cupy.cuda.compiler." in done.stderr
    assert "CuPy compiles its kernels itself" in done.stderr
    assert done.returncode == (way == "--check")


def test_checking_cupys_compiler_does_not_load_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import importlib.util; importlib.util.find_spec('cupy.cuda.compiler')\n"
        "import cupy.cuda.compiler as compiler\n"
        "print(compiler._compile_module_with_cache.__module__)\n"
    )

    done = run("run", str(script), cache=tmp_path)

    assert done.stdout == "rtcompile.frontends.cupy_hook\n", done.stderr


def test_json_output_is_exactly_one_object(recorded):
    checked = run("run", "--json", "--check", recorded.script, cache=recorded.cache)
    for printed in (recorded.stderr, checked.stderr):
        assert json.loads(printed)["builds"][0]["arch"] == "sm_80"


def test_an_invalid_header_path_is_an_error_of_the_record(tmp_path, capsys):
    text = b"#define SCALE 3\n"
    digest = content_digest(text)
    headers = [["user0", "scale.cuh", "/a\0b", digest]]
    record = written_record(tmp_path / "kernels.json", headers, {digest: text.decode()})

    assert main(["warm", str(record)]) == 2
    assert "a header of the record is damaged" in capsys.readouterr().err


def test_warming_obeys_jobs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RTCOMPILE_JOBS", "2")  # restored at the end
    record = tmp_path / "kernels.json"
    record.write_text('{"format": "rtcompile record 6", "builds": [], "headers": {}}')

    assert main(["warm", str(record), "--jobs", "0"]) == 2
    assert "--jobs 0: expected a positive number" in capsys.readouterr().err
    assert main(["warm", str(record), "--jobs", "1"]) == 0
    assert os.environ["RTCOMPILE_JOBS"] == "1"


# Everything that a program can observe of itself, and its end.
ITSELF = """
import atexit, pickle, sys, threading, time
main = sys.modules["__main__"]
names = "__name__", "__file__", "__spec__", "__package__", "__cached__", "__doc__"
print([(name, getattr(main, name, "none")) for name in names])
print(type(main.__loader__), type(main.__builtins__), sorted(globals()), main.__dict__ is globals())
print(sys.argv, sys.path)
class Mine: pass
def pickles(): print(type(pickle.loads(pickle.dumps(Mine()))) is Mine, sys.argv)
def late():
    time.sleep(0.1)
    pickles()
atexit.register(pickles)
threading.Thread(target=late).start()
def fails(): raise ValueError("mine")
fails()
"""


@pytest.mark.some(3)
@from_table
def test_a_program_runs_as_under_python(tmp_path, arguments):
    (tmp_path / "package").mkdir()
    for name in ("program.py", "package/module.py", "package/__main__.py"):
        (tmp_path / name).write_text(ITSELF)
    py_compile.compile(str(tmp_path / "program.py"), str(tmp_path / "program.pyc"))
    (tmp_path / "wrong.py").write_text("def f(:\n")

    def outcome(*command: str) -> tuple[int, str, str]:
        done = ran(sys.executable, *command, *arguments, cwd=tmp_path)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("rtcompile: ")]
        return done.returncode, re.sub("0x[0-9a-f]+", "", done.stdout), "\n".join(errors)

    assert outcome("-m", "rtcompile", "run") == outcome()


@from_table
def test_an_invalid_record_is_rejected_in_one_line(tmp_path, capsys, text, what):
    path = tmp_path / "kernels.json"
    path.write_text(text)

    assert main(["warm", str(path)]) == 2
    assert what in capsys.readouterr().err


def test_a_bundle_for_other_devices_than_the_recorded_has_its_builds(tmp_path, recorded, capsys):
    bundle = str(tmp_path / "kernels.rtc")
    assert main(["bundle", recorded.record, "-o", bundle, "--arch", "sm_75,sm_90a"]) == 0

    capsys.readouterr()
    assert main(["bundle", "verify", bundle, recorded.record]) == 0

    assert capsys.readouterr().out.count(" found") == 2


def test_each_build_of_a_record_that_fails_is_in_the_commands_json(tmp_path, run_json, capsys):
    script = program(tmp_path, "for n in range(7): compile(f'__global__ void k{n}() {{}}')")
    record = str(tmp_path / "kernels.json")
    run("run", "--record", record, script, cache=tmp_path)

    main(["warm", record, "--arch", "sm_20"])
    assert "and 2 more; `--json` shows all" in capsys.readouterr().err

    failed = run_json("warm", record, "--arch", "sm_20")[1]["error"]["errors"]
    assert [failed[str(n)]["name"] for n in range(7)] == [f"k{n}.cu" for n in range(7)]


@pytest.mark.needs_nvcc
def test_a_program_for_nvcc_takes_nvrtc_if_the_run_says_so(tmp_path):
    script = program(tmp_path, f"compile({CODE!r}, backend='nvcc')")
    offered = (
        r"1 built in .*; 1 by NVCC as requested, \d+\.\d s: try RTCOMPILE_FALLBACK=nvrtc-first$"
    )
    for is_offered in (True, False):
        done = run("run", script, cache=tmp_path)
        assert bool(re.search(offered, done.stderr, re.MULTILINE)) == is_offered, done.stderr
    first = {"RTCOMPILE_FALLBACK": "nvrtc-first"}
    done = run("run", script, cache=tmp_path, **first)
    assert "by NVCC" not in done.stderr
    done = run("run", "--json", script, cache=tmp_path / "another", **first)
    (build,) = json.loads(done.stderr.splitlines()[-1])["builds"]
    assert (build["backend"], build["hit"]) == ("nvrtc", ""), done.stderr
