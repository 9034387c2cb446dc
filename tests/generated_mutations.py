"""Mutates the code automatically, and lists the mutants that no test notices: ``make mutations``.

cosmic-ray creates all mutants of its operators. The script tries a seeded sample of each room, one mutant
after another, in a copy of the tree, with the tests of that room. ``tests/survivors.txt`` lists the mutants
that no test can notice, a line each: ``ROOM FUNCTION: OPERATOR OLD -> NEW | REASON``. The script fails for a
survivor that is not in the list.

``python -m tests.generated_mutations [--count 40] [--seed 1] [ROOM …]``.
"""

import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations import copied

ROOT = Path(__file__).parent.parent
SURVIVORS = Path(__file__).parent / "survivors.txt"

# Each room, its mutated files, and the tests that must notice.
ROOMS = {
    "request": (
        "rtcompile/request",
        # cuda.core compiles with the NVRTC that is loaded, so its test comes before those that load CUDA 13's.
        "test_request test_options_table test_options test_key test_one_architecture test_options_arch "
        "test_includes test_link_of_others test_arch test_cxx test_options_taken test_warnings "
        "test_negative test_cache_store test_cache_faults",
    ),
    "lookup": (
        "rtcompile/lookup",
        "test_snapshots test_queries test_environment test_driver test_hits_of_processes "
        "test_cache_edits test_settings test_public test_lookup "
        "test_bundle test_bundle_index test_bundle_written",
    ),
    "files": (
        "rtcompile/files/fileset.py",
        "test_file_times test_folders test_fileset test_cache_edits test_hits_of_processes "
        "test_negative test_lookup test_unobserved_headers",
    ),
}
# Operators on `|` change only annotations, which are not evaluated.
OPERATORS = (
    "core/AddNot",
    "core/ExceptionReplacer",
    "core/NumberReplacer",
    "core/Replace%Break%",
    "core/Replace%Continue%",
    "core/ReplaceAndWithOr",
    "core/ReplaceComparisonOperator%",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ZeroIterationForLoop",
)
SECONDS = 240  # time limit for the tests of one mutant; beyond it, an endless loop is assumed
CONFIG = """[cosmic-ray]
module-path = "{module}"
timeout = {seconds}
excluded-modules = []
test-command = "{python} -m pytest -q -x -p no:cacheprovider {tests}"
[cosmic-ray.distributor]
name = "local"
"""


def tried(room: str, count: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """Try `count` mutants of a room; return the counts of outcomes, and a line for each survivor."""
    module, names = ROOMS[room]
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        tests = [str(path) for name in names.split() for path in tree.glob(f"tests/*/{name}.py")]
        config, session = tree / "mutants.toml", tree / "mutants.sqlite"
        config.write_text(
            CONFIG.format(
                module=module, seconds=SECONDS, python=sys.executable, tests=" ".join(tests)
            )
        )
        environ = {**os.environ, "PYTHONPATH": str(tree)}
        run = (sys.executable, "-m", "cosmic_ray.cli")
        # A test that fails without a mutant would hide all survivors.
        subprocess.run([*run, "baseline", str(config)], cwd=tree, env=environ, check=True)
        subprocess.run([*run, "init", str(config), str(session)], cwd=tree, env=environ, check=True)
        _sample(session, count, seed)
        subprocess.run([*run, "exec", str(config), str(session)], cwd=tree, env=environ, check=True)
        return _results(session, room)


def _sample(session: Path, count: int, seed: int) -> None:
    """Remove all but `count` mutants from a session."""
    with sqlite3.connect(session) as database:
        like = " or ".join(["operator_name like ?"] * len(OPERATORS))
        query = (
            f"select job_id from mutation_specs where {like} order by module_path, start_pos_row"
        )
        query += ", start_pos_col, operator_name, occurrence"
        jobs = [job for (job,) in database.execute(query, OPERATORS)]
        chosen = random.Random(seed).sample(jobs, min(count, len(jobs)))
        for table in ("mutation_specs", "work_items"):
            marks = ",".join("?" * len(chosen))
            database.execute(f"delete from {table} where job_id not in ({marks})", chosen)


def _results(session: Path, room: str) -> tuple[dict[str, int], list[str]]:
    outcomes: dict[str, int] = {}
    survivors = []
    with sqlite3.connect(session) as database:
        rows = database.execute(
            "select test_outcome, operator_name, definition_name, diff from work_results "
            "join mutation_specs using (job_id)"
        )
        for outcome, operator, function, diff in rows:
            outcomes[outcome.lower()] = outcomes.get(outcome.lower(), 0) + 1
            if outcome == "SURVIVED":
                # A change of a file's last line has an empty one too.
                changed = [
                    line for line in diff.splitlines() if line[:1] in "+-" and line[1:].strip()
                ]
                old, new = (line[1:].strip() for line in changed if line[:3] not in ("---", "+++"))
                name = operator.rpartition("/")[2]
                survivors.append(f"{room} {function}: {name} {old} -> {new}")
    return outcomes, sorted(survivors)


def main() -> int:
    """Try the rooms in parallel, print the survivors, and return 1 for an unknown one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], default=[])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    known = {line.partition(" | ")[0] for line in SURVIVORS.read_text().splitlines()}
    status = 0
    with ThreadPoolExecutor(2) as threads:
        results = threads.map(
            lambda room: (room, *tried(room, given.count, given.seed)), given.rooms or ROOMS
        )
        for room, outcomes, survivors in results:
            print(f"{room}: {outcomes}", flush=True)
            for line in survivors:
                is_known = line in known
                print("known   " if is_known else "SURVIVED", line)
                status = status if is_known else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
