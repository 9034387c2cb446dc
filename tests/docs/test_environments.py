"""The page of environments in the docs matches the committed table, and the table is complete."""

import json
from pathlib import Path

from benchmarks.environment_list import ENVIRONMENTS
from benchmarks.environments import markdown
from benchmarks.ten_builds import BUILDS

ROOT = Path(__file__).parents[2]
REPORT = json.loads((ROOT / "benchmarks/results/environments.json").read_text())


def test_the_page_is_written_from_the_results():
    assert (ROOT / "docs/environments.md").read_text() == markdown(REPORT)


def test_failures_that_pip_can_fix_were_fixed_by_the_errors_advice():
    problems = {}
    for environment in ENVIRONMENTS:
        found = REPORT["results"][environment.name]
        assert list(found["builds"]) == list(BUILDS), environment.name
        wrong = [advice["problem"] for advice in found["advice"] if advice["problem"]]
        # The remaining failures need a toolkit: no wheel of CUDA 12 has nvcc, none of 12.8 the device runtime.
        wrong += [text for text in found["left"].values() if "Install the CUDA toolkit" not in text]
        problems |= {environment.name: wrong} if wrong else {}
    assert problems == {}


def built(name):
    """Return the builds that succeeded in an environment without a fix."""
    return {kind for kind, found in REPORT["results"][name]["builds"].items() if "backend" in found}


def test_cute_compiles_with_every_cuda_that_has_cutlass():
    beside = [e.name for e in ENVIRONMENTS if "cutlass" in " ".join(e.commands)]
    assert len(beside) > 20
    assert [name for name in beside if "CuTe" not in built(name)] == []


def test_nvrtcs_wheel_alone_builds_kernels_with_its_own_headers():
    without_extras = built("NVRTC alone")
    assert without_extras == {"plain", "WMMA", "CUB block", "std"}
    assert built("minimal,cutlass") == without_extras | {"CuTe"}
    # The other two need nvcc.
    assert set(BUILDS) - built("all but nvcc") == {"CUB device", "NVCC"}


def test_the_results_name_no_folder_of_their_machine():
    assert "/tmp/" not in json.dumps(REPORT)
