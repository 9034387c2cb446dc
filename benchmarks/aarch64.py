"""rtcompile on aarch64 (Grace Hopper, DGX Spark, Jetson), emulated by QEMU on an x86-64.

``make test-aarch64`` creates a folder ``.aarch64`` with Debian's arm64 packages (Python and g++) and,
for each CUDA, an environment of aarch64 wheels. It runs `aarch64_checks` there and exits with 1 if a
check fails. The machine is not changed: QEMU is registered in a separate user namespace, which Linux
supports from 6.7 on. Arguments: names of environments, of checks, and --save.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import _machine
from benchmarks.aarch64_checks import BUILD, CHAR, CHECKS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".aarch64"
SYSTEM = FOLDER / "root"  # of the emulated machine
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# The machine emulated, and QEMU for this one: its newer versions have fewer gaps.
RELEASES = {"arm64": "bookworm", "amd64": "trixie"}
PACKAGES = ("python3", "g++", "coreutils", "dash", "sed", "grep")
PYTHON = "3.11"  # bookworm's
ENVIRONMENTS = {
    "cuda12.9": ["{wheel}[cuda12,cutlass]", "cuda-toolkit==12.9.*", "zstandard"],
    "cuda13.0": ["{wheel}[cuda13,cutlass]", "cuda-toolkit==13.0.*", "zstandard"],
    "cuda13": ["{wheel}[cuda13,cutlass]", "zstandard"],
}
PROGRAMS = ("apt-get", "dpkg-deb", "setpriv", "unshare", "tar")
TAGS = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_17")

# As root of a new user namespace: QEMU becomes the interpreter of aarch64's programs, and the folder
# the root. It is opened at once (F), since it is not in that folder.
ENTER = r"""
root=$1 qemu=$2; shift 2
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc &&
printf '%s' ":aarch64:M::\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00:\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:$qemu:PF" \
    > /proc/sys/fs/binfmt_misc/register &&
mount --rbind "$root" "$root" && mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" || exit 97
exec "$(command -v chroot)" "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root LANG=C.UTF-8 "$@"
"""
LINUX = (
    "QEMU cannot be registered here: this needs Linux 6.7 or newer (binfmt_misc in a user "
    "namespace), and user namespaces that may be made by this user"
)


def apt(machine: str, *words: str) -> None:
    """Run apt-get for another machine, with lists and a cache of its own."""
    folder = FOLDER / f"apt-{machine}"
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    sources = folder / "sources.list"
    release = RELEASES[machine]
    sources.write_text(f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {release} main\n")
    options = {
        "APT::Architecture": machine,
        "APT::Architectures": machine,
        "APT::Install-Recommends": "0",
        "APT::Sandbox::User": "root",
        "Dir::State": folder,
        "Dir::State::status": folder / "status",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder,
        "Dir::Cache::archives": folder / "archives",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    done = subprocess.run(["apt-get", "-qq", *given, *words], cwd=folder / "archives")
    if done.returncode:
        raise SystemExit(f"Debian's packages for {machine} could not be fetched: apt-get failed.")


def unpack(machine: str, folder: Path, names: str = "*") -> None:
    for package in sorted((FOLDER / f"apt-{machine}/archives").glob(f"{names}.deb")):
        files = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", package], check=True, stdout=subprocess.PIPE
        )
        command = ["tar", "-x", "--keep-directory-symlink", "-C", folder]
        subprocess.run(command, check=True, input=files.stdout)


def make_system() -> Path:
    """Lay out the emulated machine, and return the path of QEMU."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is not installed; this runs on Debian and Ubuntu.")
    if not os.path.isfile(KEYRING):
        raise SystemExit(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    qemu = FOLDER / "qemu/usr/bin/qemu-aarch64"
    if not qemu.is_file():
        apt("amd64", "update")
        apt("amd64", "download", "qemu-user")
        qemu.parents[2].mkdir(exist_ok=True)
        unpack("amd64", qemu.parents[2])
    if not (SYSTEM / "made").is_file():
        for name in ("bin", "lib", "sbin"):  # as Debian has them
            (SYSTEM / "usr" / name).mkdir(parents=True, exist_ok=True)
            if not (SYSTEM / name).is_symlink():
                (SYSTEM / name).symlink_to(f"usr/{name}")
        apt("arm64", "update")
        apt("arm64", "-y", "--download-only", "install", *PACKAGES)
        unpack("arm64", SYSTEM)
        for name in ("proc", "dev", "tmp", "root", "env"):
            (SYSTEM / name).mkdir(exist_ok=True)
        (SYSTEM / "tmp").chmod(0o1777)
        shell = SYSTEM / "usr/bin/sh"
        if not shell.exists():
            shell.symlink_to("dash")
        (SYSTEM / "made").touch()
    return qemu


def make_environment(name: str) -> None:
    """Install aarch64's wheels into a virtual environment, which has the rtcompile of this checkout."""
    prefix = SYSTEM / "env" / name
    site = prefix / f"lib/python{PYTHON}/site-packages"
    dist = FOLDER / f"dist-{name}"
    pip = [sys.executable, "-m", "pip"]
    shutil.rmtree(dist, ignore_errors=True)
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", dist, ROOT], check=True)
    (wheel,) = dist.glob("*.whl")
    tags = [f"--platform=manylinux_{tag}_aarch64" for tag in TAGS] + [
        "--platform=manylinux2014_aarch64"
    ]
    install = [*pip, "install", "-q", "--only-binary=:all:", *tags, f"--python-version={PYTHON}"]
    install += ["--upgrade", "--target", site]
    if not (prefix / "pyvenv.cfg").is_file():
        words = [word.format(wheel=wheel) for word in ENVIRONMENTS[name]]
        subprocess.run([*install, *words], check=True)
        (prefix / "bin").mkdir(exist_ok=True)
        (prefix / "bin/python").symlink_to(f"/usr/bin/python{PYTHON}")
        (prefix / "pyvenv.cfg").write_text("home = /usr/bin\n")
    subprocess.run([*install, "--no-deps", wheel], check=True)


def fill_store(name: str) -> None:
    """Have this machine's NVRTC, if it is the same as the environment's, fill a store for a check."""
    shared = SYSTEM / "shared" / name
    shutil.rmtree(shared, ignore_errors=True)
    store = shared / "store"
    store.mkdir(parents=True)
    (theirs,) = SYSTEM.glob(f"env/{name}/lib/python*/site-packages/nvidia_cuda_nvrtc*.dist-info")
    if _machine.describe().get("nvrtc") != theirs.stem.split("-")[1]:
        return
    environ = {
        **os.environ,
        "RTCOMPILE_REMOTE": f"file://{store}",
        "RTCOMPILE_REMOTE_UNSIGNED": "1",
        "RTCOMPILE_CACHE_DIR": str(shared / "cache"),
    }
    command = [sys.executable, "-c", BUILD, json.dumps(CHAR), "{}"]
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE)
    hit, digest, _ = json.loads(done.stdout)
    assert hit is None
    (shared / "digest").write_text(digest)


def run(qemu: Path, name: str, checks: list[str]) -> Iterator[dict[str, Any]]:
    """Run the checks in one environment of the emulated machine; yield what it has, then each outcome."""
    fill_store(name)
    scripts = SYSTEM / "checks"
    scripts.mkdir(exist_ok=True)
    for script in ("aarch64_checks.py", "ten_builds.py"):
        shutil.copy(ROOT / "benchmarks" / script, scripts)
    spaces = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    inside = [
        f"/env/{name}/bin/python",
        "/checks/aarch64_checks.py",
        f"/shared/{name}/store",
        *checks,
    ]
    # If this process is killed, `unshare` is too, and with it everything inside.
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *spaces,
        "sh",
        "-c",
        ENTER,
        "sh",
        SYSTEM,
        qemu,
        *inside,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
    if process.returncode:
        raise SystemExit(LINUX if process.returncode == 97 else f"{name}: the checks did not run")


def main(words: list[str]) -> None:
    names = [word for word in words if word in ENVIRONMENTS] or list(ENVIRONMENTS)
    checks = [word for word in words if word in CHECKS]
    FOLDER.mkdir(exist_ok=True)
    qemu = make_system()
    version = subprocess.check_output([qemu, "--version"], text=True).splitlines()[0]
    saved, bad = ROOT / "benchmarks/results/aarch64.json", []
    for name in names:
        make_environment(name)
        outcomes = run(qemu, name, checks)
        about = next(outcomes)
        for outcome in outcomes:
            # What is not run again stays as it was.
            results = json.loads(saved.read_text())["results"] if saved.is_file() else {}
            before = results.get(name, {}).get("checks", {})
            results[name] = {**about, "checks": {**before, **outcome}}
            _machine.save("aarch64", {**results, "emulator": version})
            bad += [f"{name}: {check}" for check, each in outcome.items() if not each["good"]]
    if bad:
        raise SystemExit(f"failed: {', '.join(bad)}")


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word != "--save"])
