"""Tests of the negative cache with failures of NVCC and of its host compiler."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from tests.store.test_negative_processes import SHARED, TYPO, another_process

pytestmark = pytest.mark.needs_nvcc


@pytest.mark.parametrize(
    ("source", "given"),
    [
        pytest.param(TYPO, {"backend": "nvcc"}, id="NVCC only", marks=pytest.mark.slow),
        pytest.param(SHARED, {"backend": "nvcc"}, id="its ptxas", marks=pytest.mark.slow),
        pytest.param(
            SHARED + "\ntemplate <class T> __global__ void f(T* x) {}",
            {"backend": "nvcc", "name_expressions": ["f<int>"]},
            id="its ptxas, after names were read",
            marks=pytest.mark.slow,
        ),
        pytest.param("#include <vector>\n" + TYPO, {}, id="NVCC after NVRTC"),
    ],
)
def test_a_failure_of_nvcc_is_found_by_the_next_process_until_a_header_changes(
    source: str, given: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "mine.h").write_text("// old")
    given = {**given, "options": [f"-I{tmp_path}"]}
    source = f'#include "mine.h"\n{source}'
    time.sleep(0.02)  # a file written in the tick in which it is read counts as changed
    found = [another_process(source, **given) for _ in range(2)]
    assert [(each["cached"], each["compiled"]) for each in found] == [(False, True), (True, False)]

    (tmp_path / "mine.h").write_text("// new and longer")
    assert another_process(source, **given)["cached"] is False


@pytest.mark.some(1)
@pytest.mark.parametrize("folder", ["listed", "not/there/yet"])
def test_a_missing_header_is_remembered_for_the_host_compiler_until_it_appears(
    folder: str, tmp_path: Path
) -> None:
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed/first.h").write_text("#include <vector>\n#include <sub/late.h>\n")
    late = tmp_path / folder / "sub/late.h"
    given: dict[str, Any] = {
        "source": "#include <first.h>\n__global__ void k() {}",
        "arch": "sm_90a",
        "options": (f"-I{tmp_path}/not/there/yet", f"-I{tmp_path}/listed"),
    }
    time.sleep(0.02)
    for is_cached in (False, True):
        with pytest.raises(rtcompile.CompileError, match=r"late\.h") as caught:
            rtcompile.compile(**given)
        assert caught.value.cached is is_cached

    late.parent.mkdir(parents=True)
    late.write_text("")

    assert rtcompile.compile(**given).build.backend == "nvcc"


def test_a_header_that_nvrtc_rejects_is_compiled_by_nvcc_until_edited(tmp_path: Path) -> None:
    header = tmp_path / "mine.h"
    header.write_text("#include <vector>\n")
    given: dict[str, Any] = {"arch": "sm_90a", "options": (f"-I{tmp_path}",)}
    source = '#include "mine.h"\n__global__ void k() {}'
    time.sleep(0.02)
    assert rtcompile.compile(source, **given).build.backend == "nvcc"
    header.write_text("#define NOTHING\n")
    assert rtcompile.compile(source, **given).build.backend == "nvrtc"
