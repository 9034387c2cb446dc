"""Trials of surroundings that few machines have: other file systems, clocks that jump, copies of the package."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.processes import ran
from tests.trials.record import record

ROOT = Path(__file__).parents[2]

BUILD = """if True:
    import sys
    import rtcompile
    for number in range(4):
        source = f'extern "C" __device__ int v{number}; extern "C" __global__ void k() {{}}'
        given = dict(options=["-lineinfo"], name="n" * 140)  # a copy of the source, for debuggers, gets this name
        program = rtcompile.compile(source, arch="sm_80", backend="nvrtc", **given)
        assert f"v{number}\\0".encode() in program.code
        print(bool(program.build.hit), end=" ")
"""
BUILT, FOUND = ["False"] * 4, ["True"] * 4


def python(program: str, *before: str, **environ: str) -> list[str]:
    """Return the words that a program printed, which must succeed and print no error."""
    variables = {"PYTHONPATH": str(ROOT), **environ}
    words = *before, sys.executable, "-c", program
    # In the checkout, Python would find the checkout first.
    done = ran(*words, environ=variables, timeout=300, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


# Each command mounts a file system on the folder m.
MOUNTS = {
    "overlayfs": "mount -t tmpfs t w && mkdir w/l w/u w/w && mount -t overlay o -o lowerdir=w/l,upperdir=w/u,workdir=w/w m",
    "bindfs (FUSE)": "bindfs w m",
    "tmpfs of 12 inodes": "mount -t tmpfs -o nr_inodes=12 t m",
    "btrfs whose quota is used up": "truncate -s 128M d && mkfs.btrfs -q d >&2 && mount -o loop d m && "
    "btrfs quota enable m && btrfs qgroup limit 160K m && rm d",
}
PROGRAMS = {"btrfs": "mkfs.btrfs", "bindfs": "bindfs"}


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root mounts")
@pytest.mark.parametrize("kind", MOUNTS)
def test_a_cache_on_another_file_system(kind, tmp_path):
    needed = PROGRAMS.get(kind.split()[0], "mount")
    if not shutil.which(needed):
        pytest.skip(f"{needed} is not installed")
    for name in "wm":
        (tmp_path / name).mkdir()
    environ = {"RTCOMPILE_CACHE_DIR": str(tmp_path / "m" / "cache")}
    build = shlex.join([sys.executable, "-c", BUILD])
    script = f"{MOUNTS[kind]} && mkdir -m 700 m/cache || exit 77; {build} && {build}"
    words = ["unshare", "--mount", "sh", "-c", f"cd {shlex.quote(str(tmp_path))} && {script}"]
    done = ran(*words, environ=environ, timeout=300)
    if done.returncode == 77:
        pytest.skip(f"not mounted: {done.stderr}")
    words = done.stdout.split()
    is_full = "inodes" in kind or "quota" in kind
    good = done.returncode == 0 and words[:4] == BUILT
    good = good and (is_full or (words[4:], done.stderr) == (FOUND, ""))
    record(f"build with the cache on {kind}", 8, 0 if good else 8)
    assert good, (words, done.stderr)


@pytest.mark.parametrize("jump", ["-400d", "+400d", "+0 x60"])
def test_clocks_that_jump(jump):
    if not shutil.which("faketime"):
        pytest.skip("faketime is not installed")
    assert python(BUILD) == BUILT
    words = python(BUILD, "faketime", "-f", jump)
    record("process whose clock jumped", 1, words != FOUND)
    assert words == FOUND
    assert python(BUILD) == FOUND


def test_a_vendored_copy_under_another_name_beside_the_original(tmp_path):
    shutil.copytree(ROOT / "rtcompile", tmp_path / "rtcompile")
    shutil.copytree(ROOT / "include_shims", tmp_path / "rtcompile" / "include_shims")
    assert python(BUILD) == BUILT
    words = python(BUILD, PYTHONPATH=str(tmp_path))
    record("copy of the package on the original's cache", 4, 0 if words == FOUND else 4)
    assert words == FOUND


def test_a_safe_path():
    words = python(BUILD, PYTHONSAFEPATH="1")
    record("builds under PYTHONSAFEPATH", 4, 0 if words == BUILT else 4)
    assert words == BUILT


def test_a_thousand_kernels_that_nobody_uses():
    pytest.importorskip("cupy")
    program = """if True:
        import rtcompile
        kept = [
            rtcompile.RawModule(code=f'extern "C" __global__ void k{n}() {{}}', arch="sm_80")
            for n in range(1_000)
        ]
        print(len(kept))
    """
    words = python(program)
    record("process of 1,000 kernels that nobody uses", 1, words != ["1000"])
    assert words == ["1000"]


GROUPS = Path("/sys/fs/cgroup")
DOUBLED = (
    "template<int D, long P> struct F { static __device__ int f() { return F<D-1, 2*P>::f() + F<D-1, 2*P+1>::f(); } };"
    "template<long P> struct F<0, P> { static __device__ int f() { return P; } };"
    "__global__ void k(int* p) { *p = F<12, 1>::f(); }"
)
LIMITED = f"""if True:
    import os, sys
    import rtcompile
    group, file, limit, unlimited = sys.argv[1:]

    def build(source, value):
        open(f"{{group}}/{{file}}", "w").write(value)
        try:
            return rtcompile.compile(source, arch="sm_80", backend="nvrtc").build.backend
        except rtcompile.RtcompileError as error:
            return str(error)

    open(f"{{group}}/cgroup.procs", "w").write(str(os.getpid()))
    print(build({DOUBLED!r}, limit))
    print("small", build("__global__ void k() {{}}", limit if "mem" in file else unlimited))
    print("again", build({DOUBLED!r}, unlimited))
"""


@pytest.mark.parametrize(
    ("controller", "limit", "text"),
    [
        ("memory", "96M", "used too much memory"),
        ("pids", "1", "`pids.max`"),
        pytest.param("pids", "2", "`pids.max`", marks=pytest.mark.slow),
    ],
)
def test_a_container_with_little_memory_or_few_processes(controller, limit, text, tmp_path):
    is_v2 = (GROUPS / "cgroup.controllers").exists()
    file = f"{controller}.max" if is_v2 or controller == "pids" else "memory.limit_in_bytes"
    group = (GROUPS if is_v2 else GROUPS / controller) / f"rtcompile-trial-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of {controller}: {error}")
    try:
        if not (group / file).exists():
            pytest.skip(f"these cgroups have no {file}")
        words = [str(group), file, limit, "-1" if "bytes" in file else "max"]
        environ = {"RTCOMPILE_CACHE_DIR": str(tmp_path)}
        done = ran(sys.executable, "-c", LIMITED, *words, environ=environ, timeout=300)
    finally:
        group.rmdir()
    good = text in done.stdout and "bug of" not in done.stdout
    good = good and done.stdout.endswith("small nvrtc\nagain nvrtc\n")
    kind = f"build in a cgroup with little of {controller}, then without the limit"
    record(kind, 3, 0 if good else 3)
    assert good, done.stdout + done.stderr
