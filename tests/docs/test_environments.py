"""The page of environments in the docs is the committed table, and the table holds what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.environment_list import ENVIRONMENTS
from benchmarks.environments import markdown
from benchmarks.ten_builds import BUILDS

ROOT = Path(__file__).parents[2]
REPORT = json.loads((ROOT / "benchmarks/results/environments.json").read_text())


def test_the_page_is_written_from_the_results():
    assert (ROOT / "docs/environments.md").read_text() == markdown(REPORT)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda environment: environment.name)
def test_what_failed_and_can_be_fixed_by_pip_was_fixed_by_what_the_error_says(environment):
    found = REPORT["results"][environment.name]
    assert list(found["builds"]) == list(BUILDS)
    assert not [advice["problem"] for advice in found["advice"] if advice["problem"]]
    # What is left over names a toolkit: no wheel of CUDA 12 has nvcc, none of 12.8 the device runtime.
    assert [text for text in found["left"].values() if "Install the CUDA toolkit" not in text] == []


def built(name):
    """The builds that an environment did at once."""
    return {kind for kind, found in REPORT["results"][name]["builds"].items() if "backend" in found}


def test_cute_compiles_beside_every_cuda_that_cutlass_is_installed_beside():
    beside = [e.name for e in ENVIRONMENTS if "cutlass" in " ".join(e.commands)]
    assert len(beside) > 20
    assert [name for name in beside if "CuTe" not in built(name)] == []


def test_nvrtcs_wheel_alone_builds_what_its_own_headers_are_enough_for():
    alone = built("NVRTC alone")
    assert alone == {"plain", "WMMA", "CUB block", "std"}
    assert built("minimal,cutlass") == alone | {"CuTe"}
    # The other two need nvcc.
    assert set(BUILDS) - built("all but nvcc") == {"CUB device", "NVCC"}


def test_the_results_name_no_folder_of_the_machine_that_they_come_from():
    assert "/tmp/" not in json.dumps(REPORT)
