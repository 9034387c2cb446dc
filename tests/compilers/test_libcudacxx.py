"""libcu++'s own tests give the same results as with plain NVRTC: a small checkout, and a slice of upstream's."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.libcudacxx_tests import Test as LibcxxTest
from benchmarks.libcudacxx_tests import features_of, is_met
from tests.processes import ran
from tests.tables import from_table

REPOSITORY = Path(__file__).parents[2]
CHECKOUT = REPOSITORY / ".cccl"
SMALL = {
    "std/passes.pass.cpp": "#include <own.h>\nint main(int, char**) { return own; }",
    "std/asserts.pass.cpp": "// ADDITIONAL_COMPILE_DEFINITIONS: SAYS=__FILE__, OWN\n"
    "int main(int c, char**) { assert(c && SAYS); return 0; }",
    "std/fails.fail.cpp": "int main(int, char**) { return absent; }",
    "std/known.pass.cpp": "// XFAIL: pre-sm-90\nint main(int, char**) { return absent; }",
    "std/host.pass.cpp": "// UNSUPPORTED: nvrtc\nint main(int, char**) {}",
    "std/new.pass.cpp": "// REQUIRES: c++23\nint main(int, char**) {}",
    "std/script.sh.cpp": "// RUN: %build",
}


@from_table
def test_a_lit_condition_is_evaluated(expression, holding):
    assert is_met(expression, features_of(90, "c++20")) is holding


def test_a_tests_own_declarations_are_read(tmp_path):
    def read(name: str, text: str) -> LibcxxTest:
        (tmp_path / name).write_text(text)
        return LibcxxTest(tmp_path / name, features_of(80, "c++17"))

    required = read("a.pass.cpp", "// REQUIRES: c++17, nvrtc\n// UNSUPPORTED: clang-7, pre-sm-90\n")
    assert required.skipped == "UNSUPPORTED: pre-sm-90"
    assert read("b.pass.cpp", "// REQUIRES: c++17, long_tests\n").skipped == "REQUIRES: long_tests"
    failing = read("c.fail.cpp", "// ADDITIONAL_COMPILE_DEFINITIONS: A=1, B\n")
    found = failing.skipped, failing.macros, failing.should_compile
    assert found == ("", ["-DA=1", "-DB"], False)
    assert read("d.pass.cpp", "// XFAIL: *\n").should_compile is None


def compared(checkout: Path, *options: str, minutes: int = 5) -> dict[str, object]:
    words = [sys.executable, "-m", "benchmarks.libcudacxx_tests", checkout, *options]
    done = ran(*words, "--minutes", minutes, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    results: dict[str, object] = json.loads(done.stdout)["results"]
    return results


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.takes_seconds
def test_a_small_checkout(tmp_path):
    support = tmp_path / "libcudacxx/test/support"
    tests = tmp_path / "libcudacxx/test/libcudacxx/std"
    for folder in (support, tests):
        folder.mkdir(parents=True)
    (support / "nasty_macros.h").write_text("#define NASTY\n")
    (support / "own.h").write_text("namespace { __device__ int own; }\n")
    for name, text in SMALL.items():
        (tests.parent / name).write_text(text + "\n")
    lines = tmp_path / "lines"
    options = ("--arch", "80", "--processes", "1", "--lines", str(lines))
    results = compared(tmp_path, *options)
    assert results["tests"] == len(SMALL)
    assert results["skipped by upstream's rules"] == {
        "UNSUPPORTED: nvrtc": 1,
        "REQUIRES: c++23": 1,
        "a script of lit (.sh.cpp)": 1,
    }
    assert results["not as named"] == {}
    assert results["compiled on both sides, or on neither"] == len(lines.read_text().splitlines())
    assert results["different verdict"] == results["different code"] == {}
    # Existing results are not compiled again, and an interrupted run is summed up from them.
    (tests / "fails.fail.cpp").write_text("int main(int, char**) { return 0; }")
    assert compared(tmp_path, *options, minutes=0)["same verdict"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 240, 60))
def test_every_60th_of_upstream(first):
    if not (CHECKOUT / ".made").exists():
        pytest.skip("no checkout of NVIDIA/cccl in .cccl; `make .cccl/.made` fetches it")
    results = compared(CHECKOUT, "--every", "240", "--first", str(first), minutes=7)
    assert results["tests"] >= 15
    for what in ("without an answer", "different verdict", "different code"):
        assert not results[what], results[what]
    assert results["not reached"] == 0
    assert results["of these compiled"] >= 8
