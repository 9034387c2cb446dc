"""A reloaded file is compiled ahead like other modules, with its contents at the time of use."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("cupy")

from rtcompile import RawModule
from rtcompile.build import batch
from tests.build.test_ahead import SOURCE, built, looks_ahead
from tests.jobs import until

pytestmark = pytest.mark.needs_compiler

__all__ = ["looks_ahead"]


def test_a_reloaded_file_is_compiled_ahead_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "kernel.cu"
    file.write_text(SOURCE % 1)
    module = RawModule.from_file(file, reload=True, arch="sm_80")
    until(built)
    with monkeypatch.context() as patch:
        patch.setattr(batch.Batch, "_compiled", None)
        first = module.object_code
        assert module.build.hit is None

    file.write_text(SOURCE % 2)

    def edited() -> bool:
        return module.object_code.code != first.code

    until(edited)


@pytest.mark.parametrize("edited", ["the source", "the header"])
def test_an_edit_before_the_first_use_of_a_reloaded_file_is_noticed(tmp_path: Path, edited: str):
    header, file = tmp_path / "value.h", tmp_path / "kernel.cu"
    header.write_text("#define VALUE 1\n")
    text = '#include "value.h"\nextern "C" __global__ void k(int* p) { *p = VALUE * %d; }'
    file.write_text(text % 1)
    module = RawModule.from_file(file, reload=True, arch="sm_80")
    until(built)

    if edited == "the source":
        file.write_text(text % 7)
    else:
        header.write_text("#define VALUE 7\n")
    time.sleep(0.1)  # a reload looks at its files every 50 ms

    assert module.object_code.code == RawModule.from_file(file, arch="sm_80").object_code.code
    assert module.object_code.code != ahead_code(text % 1, tmp_path)


def ahead_code(text: str, folder: Path) -> bytes:
    (folder / "old").mkdir()
    (folder / "old" / "value.h").write_text("#define VALUE 1\n")
    (folder / "old" / "kernel.cu").write_text(text)
    return RawModule.from_file(folder / "old" / "kernel.cu", arch="sm_80").object_code.code
