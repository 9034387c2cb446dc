"""Runs the recipes of docs/cluster.md and docs/cluster-jobs.md as the pages show them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zstandard")

from tests import documentation, servers

PAGES = [documentation.ROOT / "docs" / name for name in ("cluster.md", "cluster-jobs.md")]
HITS = "import json, rtcompile; codes = [rtcompile.compile(s, arch='sm_80') for s in {sources}]; "
HITS += "print(json.dumps([code.build.hit for code in codes]))"
SOURCES = [f'extern "C" __global__ void k(int* out) {{ out[0] = {n}; }}' for n in range(2)]
PROGRAM = HITS.format(sources=SOURCES)

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def recipe(heading: str, language: str) -> str:
    """Return the only block of a language below a heading of the pages."""
    of_page = {page: page.read_text(encoding="utf-8").splitlines() for page in PAGES}
    ((page, lines),) = [each for each in of_page.items() if f"## {heading}" in each[1]]
    begin = lines.index(f"## {heading}") + 1
    ends = [number for number, line in enumerate(lines) if line.startswith("## ")]
    end = next((number for number in ends if number >= begin), len(lines))
    (text,) = [
        block.text
        for block in documentation.blocks(page)
        if block.language == language and begin < block.line <= end
    ]
    return text


def replaced(text: str, values: Mapping[str, str]) -> str:
    """Return a recipe with its names replaced; all of them must occur."""
    for theirs, ours in values.items():
        assert theirs in text, f"the recipe has no {theirs}"
        text = text.replace(theirs, ours)
    return text


class Node:
    """A machine of the cluster: a home, and a shell that runs the page's recipes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()

    def environment(self) -> dict[str, str]:
        bin = str(Path(sys.executable).parent)
        kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        return {
            **kept,
            "HOME": str(self.home),
            "USER": "me",
            "PATH": f"{bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(documentation.ROOT),
        }

    def run(self, script: str, *, fails: bool = False) -> str:
        """Run a script without its installation commands, and return its output."""
        done = subprocess.run(
            ["bash", "-c", "pip() { :; }\n" + script],
            env=self.environment(),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert fails or done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def hits(self, recipe: str) -> list[str | None]:
        """Return the hits of two kernels after running the recipe."""
        output = self.run(f"{recipe}\npython -c {_quoted(PROGRAM)}")
        hits: list[str | None] = json.loads(output.splitlines()[-1])
        return hits


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Node, Node]:
    """Two nodes with the team's key, created as on the page."""
    first, second = Node(tmp_path / "first"), Node(tmp_path / "second")
    first.run(recipe("Who is trusted", "bash"))
    shutil.copy(first.home / ".rtcompile-key", second.home)
    return first, second


KEY = "export RTCOMPILE_REMOTE_KEY_FILE=~/.rtcompile-key\n"


def shared(pair: tuple[Node, Node], text: str) -> None:
    """Check that the second node fetches the first node's builds after a recipe."""
    assert [node.hits(KEY + text) for node in pair] == [[None] * 2, ["remote"] * 2]


@pytest.fixture
def recorded(pair: tuple[Node, Node]) -> Node:
    """A node with a record of two kernels, kernels.json."""
    node = pair[0]
    (node.home / "program.py").write_text(PROGRAM)
    node.run("rtcompile run --record kernels.json program.py; rm -r ~/.cache")
    return node


# --- stores ---------------------------------------------------------------------------------------


def test_the_recipe_for_redis(pair):
    with servers.redis() as server:
        values = {"cache.example:6379": f"127.0.0.1:{server.port}"}
        text = replaced(recipe("Redis or Valkey", "bash"), values)
        shared(pair, text)
        assert "gives leases" in " ".join(pair[0].run(KEY + text, fails=True).split())


def test_the_recipe_for_s3(pair):
    with servers.s3():
        text = recipe("S3, Google Cloud Storage, Azure", "bash")
        shared(pair, replaced(text, {"s3://my-bucket": "s3://kernels"}))


def test_the_recipe_for_a_shared_folder(pair, tmp_path):
    values = {"/shared/team/kernels": f"{tmp_path}/team", "/local/$USER": "$HOME/local"}
    values["-g TEAM "] = ""
    text = replaced(recipe("A shared folder (NFS, Lustre, GPFS)", "bash"), values)
    shared(pair, text)
    (pages,) = (tmp_path / "team").glob("*/manifest")  # the folder's name is the key's fingerprint
    assert pages.stat().st_mode & 0o7777 == 0o2770
    assert (pair[0].home / "local" / "rtcompile" / "objects").is_dir()


def test_the_maintenance_commands(recorded, pair, tmp_path):
    settings = KEY + f"export RTCOMPILE_REMOTE=file://{tmp_path}/team\n"
    recorded.run(settings + recipe("Maintenance", "bash"), fails=True)
    assert pair[1].hits(settings) == ["remote"] * 2


# --- ranks ----------------------------------------------------------------------------------------

# Each simulated machine has its own node, and writes its result to a file.
TRAIN = f"""
import json, os
ranks = ("SLURM_PROCID", "PMI_RANK", "RANK")  # SLURM's, MPICH's, torchrun's
rank = next(os.environ[name] for name in ranks if name in os.environ)
node = os.environ.get("SLURM_NODEID") or str(int(rank) // 2)
os.environ["RTCOMPILE_CACHE_DIR"] += node
import rtcompile
codes = [rtcompile.compile(source, arch="sm_80") for source in {SOURCES!r}]
with open(f"{{os.environ['HITS']}}/{{rank}}", "w") as file:
    json.dump([code.build.hit for code in codes], file)
"""


@pytest.fixture
def train(pair: tuple[Node, Node], tmp_path: Path) -> Iterator[Node]:
    """A node from which `train.py` is started, and a Redis for the recipe's."""
    node = pair[0]
    (node.home / "train.py").write_text(TRAIN)
    (tmp_path / "hits").mkdir()
    with servers.redis() as server:
        values = {"login1:6379": f"127.0.0.1:{server.port}", "/tmp/$USER-rtcompile": "$HOME/cache-"}
        text = replaced(recipe("SLURM, MPI, torchrun", "bash"), values)
        settings = f"export HITS={tmp_path}/hits\n"
        head, _, rest = text.partition("export ")
        (node.home / "job.sh").write_text(f"{head}{settings}export {rest}")
        yield node


def compiled(tmp_path: Path) -> tuple[int, int]:
    """Return the number of ranks, and the number of their compiles."""
    hits = [json.loads(file.read_text()) for file in (tmp_path / "hits").iterdir()]
    return len(hits), sum(each.count(None) for each in hits)


def test_the_recipe_for_slurm(train, tmp_path):
    with servers.slurm(tmp_path / "slurm") as config:
        train.run(
            f"export SLURM_CONF={config} PATH=$PATH:{Path(sys.executable).parent}\n"
            "sbatch --wait --nodes=2 --ntasks-per-node=2 job.sh || { cat slurm-*.out; exit 1; }"
        )
    assert compiled(tmp_path) == (4, 2)


def test_the_recipe_for_ranks_of_mpi(train, tmp_path):
    if not Path(sys.executable).with_name("mpiexec").exists():
        pytest.skip("mpich is not installed")
    job = train.home / "job.sh"
    text = replaced(job.read_text(), {"srun python train.py": "mpiexec -n 4 python train.py"})
    train.run(text)
    assert compiled(tmp_path) == (4, 2)


def test_the_recipe_for_ranks_of_torchrun(train, tmp_path):
    pytest.importorskip("torch")
    text = (train.home / "job.sh").read_text()
    ranks = "torchrun --standalone --nproc-per-node=4 train.py"
    train.run(replaced(text, {"srun python train.py": ranks}))
    assert compiled(tmp_path) == (4, 2)


def test_the_recipe_for_a_batch_on_mpi(pair):
    pytest.importorskip("mpi4py")
    if not Path(sys.executable).with_name("mpiexec").exists():
        pytest.skip("mpich is not installed")
    node = pair[0]
    (node.home / "build.py").write_text(recipe("SLURM, MPI, torchrun", "python"))
    node.run("mpiexec -n 3 python -m mpi4py.futures build.py")
    found = node.run(
        "python -c 'import rtcompile; from build import variants\n"
        "print([c.build.hit for c in rtcompile.compile_many(variants, progress=False)])'"
    )
    assert found.strip() == str(["disk"] * 3)


# --- engines --------------------------------------------------------------------------------------


def test_the_recipe_for_dask(recorded):
    pytest.importorskip("distributed")
    text = replaced(recipe("Dask", "python"), {"tcp://scheduler:8786": "' + address + '"})
    text = text.replace("\"' + address + '\"", "address")
    program = (
        "import distributed, rtcompile\n"
        "def warm():\n"
        "    import json\n"
        f"    return [rtcompile.compile(s, arch='sm_80').build.hit for s in {SOURCES!r}]\n"
        "if __name__ == '__main__':\n"
        "    cluster = distributed.LocalCluster(n_workers=1, dashboard_address=None,\n"
        "        env={'RTCOMPILE_CACHE_DIR': 'theirs'})\n"
        "    address = cluster.scheduler_address\n"
        + "".join(f"    {line}\n" for line in text.splitlines())
        + "    print([code.build.hit for code in codes], *client.run(warm).values())\n"
        "    client.close(), cluster.close()\n"
    )
    (recorded.home / "batch.py").write_text(program)
    warm = "RTCOMPILE_CACHE_DIR=theirs rtcompile warm kernels.json --arch sm_80"
    output = recorded.run(f"{warm}; python batch.py").splitlines()[-1]
    assert output == f"{[None] * 3} {['disk'] * 2}"


def test_the_recipe_for_ray(recorded):
    pytest.importorskip("ray")
    program = recipe("Ray", "python") + (
        "def warm():\n"
        "    import rtcompile\n"
        f"    return [rtcompile.compile(s, arch='sm_80').build.hit for s in {SOURCES!r}]\n"
        "print([code.build.hit for code in codes], ray.get(ray.remote(warm).remote()))\n"
    )
    (recorded.home / "batch.py").write_text(program)
    warm = "rtcompile warm kernels.json --arch sm_80"
    command = f"{warm}; export RAY_USAGE_STATS_ENABLED=0; python batch.py"
    assert recorded.run(command).splitlines()[-1] == f"{[None] * 3} {['disk'] * 2}"


# --- containers -----------------------------------------------------------------------------------


def test_the_recipe_for_docker_without_a_container(recorded):
    """Each line works; an image was built from it by hand."""
    (recorded.home / "train.py").write_text(PROGRAM)
    text = replaced(recipe("Docker", "dockerfile"), {"sm_90a": "sm_80", "/app": "$HOME"})
    script = ["set -e"]
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "RUN":
            script.append(rest)
        elif word == "ENV":
            script.append(f"export {rest}")
        elif word == "CMD":
            script.append(" ".join(json.loads(rest)))
        else:
            assert word in ("FROM", "WORKDIR", "COPY")
    output = recorded.run("\n".join(script)).splitlines()[-1]
    assert json.loads(output) == ["bundle"] * 2


@pytest.fixture
def manifests() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    text = recipe("Kubernetes", "yaml")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def test_the_manifests_for_kubernetes_are_valid(manifests):
    validate = pytest.importorskip("kubernetes_validate").validate
    for manifest in manifests.values():
        validate(manifest, "1.31", strict=True)


def test_the_containers_of_kubernetes_work(manifests, pair, tmp_path):
    (store,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    pod = manifests["Job"]["spec"]["template"]["spec"]
    (train,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in train["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}
    port = store["ports"][0]["containerPort"]
    assert manifests["Service"]["spec"]["ports"] == [{"port": port}]
    command = ["redis-server" if word == "valkey-server" else word for word in store["command"]]
    with servers.redis(command=command) as server:
        found = []
        for node in pair:
            (node.home / "train.py").write_text(PROGRAM)
            (node.home / ".rtcompile-key").rename(node.home / "rtcompile-key")
            values = {
                f"kernels:{port}": f"127.0.0.1:{server.port}",
                "/secrets": str(node.home),
                "/cache": str(node.home / "cache"),
            }
            lines = [f"export {each['name']}={each['value']}" for each in train["env"]]
            text = replaced("\n".join([*lines, " ".join(train["command"])]), values)
            found.append(json.loads(node.run(text).splitlines()[-1]))
    assert found == [[None] * 2, ["remote"] * 2]
