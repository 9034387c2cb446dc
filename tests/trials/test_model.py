"""After any random change of headers, every process gets the result of a fresh build."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.trials.record import record, times
from tests.trials.test_workers_trials import ROOT

pytest.importorskip("cupy")

SEED = 1
STEPS = 40  # per world
# The number of worlds on each file system; 5,000 steps in a full run.
WORLDS = {"here": times(1, 100), "tmpfs": times(0, 13), "ext4 of whole seconds": times(0, 12)}
SHORT = times(16, STEPS)
PRIVATE = ["unshare", "--mount", "--propagation", "private"]


def may_mount() -> bool:
    if os.geteuid() or shutil.which("unshare") is None:
        return False
    return subprocess.run([*PRIVATE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("file_system", WORLDS)
def test_after_each_step_every_process_gets_what_a_fresh_build_gives(file_system, tmp_path):
    mounts = may_mount()
    if not WORLDS[file_system]:
        pytest.skip("only RTCOMPILE_TEST_TRIALS=full tries it")
    if file_system != "here" and not mounts:
        pytest.skip("may not mount a file system here")
    arguments = [str(tmp_path), file_system, str(SEED), str(WORLDS[file_system]), str(SHORT)]
    done = subprocess.run(
        [*(PRIVATE if mounts else ()), sys.executable, "-m", "tests.trials.model", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if "cannot" in found:
        pytest.skip(f"cannot be done here: {found['cannot']}")
    wrong = found["wrong"]
    kind = f"random edit of headers, links, folders and mounts, then asked by three processes ({file_system})"
    record(kind, found["steps"], len(wrong))
    assert not wrong, "\n\n".join(json.dumps(each, indent=1, ensure_ascii=False) for each in wrong)
