"""The log of aarch64 has passed checks."""

import json

from benchmarks import aarch64, aarch64_checks
from tests.documentation import ROOT

TEXT = (ROOT / "benchmarks/results/aarch64.json").read_text()
RESULTS = json.loads(TEXT)["results"]


def test_the_logged_checks_ran_on_aarch64_and_passed():
    for name in {*aarch64.ENVIRONMENTS} & {*RESULTS}:
        found = RESULTS[name]
        assert found["machine"] == "aarch64", name
        bad = [check for check, outcome in found["checks"].items() if not outcome["good"]]
        assert (name, bad) == (name, [])
        assert set(found["checks"]) <= set(aarch64_checks.CHECKS), name
    assert str(ROOT) not in TEXT  # a folder of its machine
