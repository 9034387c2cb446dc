"""Tests of the probes: each file access of NVRTC is recorded when it happens, in any spelling of the source."""

import ctypes
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.compilers import nvrtc
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import FOLDER, SearchDir
from rtcompile.request.units import Compiled, CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.toolkit.search import find
from rtcompile.workers import libraries as worker
from rtcompile.workers import probes
from tests.processes import forget_caches, python, ran
from tests.tables import from_table
from tests.toolkits import needs_host_compiler

pytestmark = pytest.mark.needs_compiler

KERNEL = 'extern "C" __global__ void k(int* p) { *p = VALUE; }\n'


@pytest.fixture(params=["12.9", "13.5"])
def library(request: pytest.FixtureRequest) -> Any:
    if request.param == "12.9":
        return toolkit.current().require_nvrtc()
    prefix = request.getfixturevalue("cuda13_prefix")
    return find({"PATH": ""}, [str(prefix)], usual_roots=()).require_nvrtc()


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A folder that is searched before `two`, which contains v.h."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two/v.h").write_text("#define VALUE 1\n")
    time.sleep(0.01)
    return tmp_path / "one"


def outcome_of(source: str, one: Path, library: Any, **more: Any) -> Compiled | CompileFailure:
    folders = [str(one), str(one.parent / "two")]
    search = [SearchDir(f"user{at}", folder) for at, folder in enumerate(folders)]
    search = more.pop("search", search)
    flags = ("-arch=sm_80", *(f"-I{each.path}" for each in search), *more.pop("flags", ()))
    name = more.pop("name", "kernel.cu")
    unit = TranslationUnit(source, name, flags, (), "cubin", Arch(8, 0), **more)
    return nvrtc.compile(unit, library, limits=Limits(), search=search)


def files_of(source: str, one: Path, library: Any, **more: Any) -> FileSet:
    outcome = outcome_of(source, one, library, **more)
    assert isinstance(outcome, Compiled), outcome.log
    assert outcome.files is not None
    assert outcome.files.is_unchanged() or outcome.files.current()
    return outcome.files


@pytest.mark.some
@from_table
def test_a_tested_header_is_noticed_when_it_appears_and_must_remain(spelling, one, library):
    source, flags = (
        f"{spelling}\n#define VALUE 1\n{KERNEL}",
        ("-DASKS=__has_include", "-DOPT=<opt.h>"),
    )
    files = files_of(source, one, library, flags=flags)
    assert not files.headers
    (one / "opt.h").write_text("one")
    assert files.current() is None
    assert "opt.h" in files.difference()

    files = files_of(source, one, library, flags=flags)
    assert [header.path for header in files.headers] == [f"{one}/opt.h"]
    (one / "opt.h").unlink()
    assert files.current() is None


@pytest.mark.some
@from_table
def test_an_edit_and_a_shadowing_header_are_noticed(spelling, one, library):
    header = one.parent / "two/v.h"
    (header.parent / "sub").mkdir()
    files = files_of(f"{spelling}\n{KERNEL}", one, library)
    (read,) = files.headers
    assert (read.label, os.path.basename(read.relative)) == ("user1", "v.h")

    (one / "sub").mkdir()
    (one / "v.h").write_text("#define VALUE 2\n")
    assert files.current() is None
    shutil.rmtree(one / "sub")
    (one / "v.h").unlink()
    assert files.current() is not None
    header.write_text("#define VALUE 3\n")
    assert files.current() is None


def another(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "v.h").write_text("#define VALUE 3\n")


def link_changed(one: Path) -> None:
    another(one.parent / "three")
    (one / "sub").unlink()
    (one / "sub").symlink_to(one.parent / "three")


@pytest.mark.parametrize(
    ("include", "before", "change"),
    [
        pytest.param(
            "<v.h>",
            lambda one: (one / "v.h").mkdir(),
            lambda one: ((one / "v.h").rmdir(), another(one)),
            id="a folder becomes a header",
        ),
        pytest.param(
            "<sub/v.h>",
            lambda one: (one / "sub").symlink_to(one.parent / "two"),
            link_changed,
            id="a link on the path",
        ),
        pytest.param(
            '"v.h"',
            lambda one: None,
            lambda one: another(one.parent / "project"),
            id="a header beside the program",
        ),
    ],
)
def test_a_change_of_the_searched_places_is_noticed(one, library, include, before, change):
    before(one)
    name = str(one.parent / "project/kernel.cu")
    files = files_of(f"#include {include}\n{KERNEL}", one, library, name=name)
    change(one)
    assert files.current() is None


def test_a_build_with_an_untraceable_file_is_not_kept(one, library):
    files = files_of('#include "v.h"\n#define AT __TIME__[0]\n' + KERNEL, one, library)
    assert not files.uncacheable, "other code checks the source's own text"
    (one / "v.h").write_text("#define VALUE __TIME__[0]\n")
    outcome = outcome_of(f'#include "v.h"\n{KERNEL}', one, library)
    assert outcome.files.uncacheable == "__TIME__ is different in every build"


def test_headers_passed_as_strings_are_no_dependencies(one, library):
    folder = f"{FOLDER}d"
    texts = ((f"{folder}/sub/t.h", '#include "u.h"\n'), (f"{folder}/sub/u.h", "#define SIDE 1\n"))
    source = f"#include <sub/t.h>\n#include <v.h>\n#if SIDE != 1\n#error\n#endif\n{KERNEL}"
    files = files_of(source, one, library, flags=(f"-I{folder}",), texts=texts)
    assert [header.path for header in files.headers] == [f"{one.parent}/two/v.h"]
    assert not [path for path in files.absent if path.startswith(folder)]


def test_a_pipe_is_not_followed(one, library):
    os.mkfifo(one / "v.h")

    def write() -> None:
        with suppress(BrokenPipeError):  # the reader may close it first
            (one / "v.h").write_text("#define VALUE 7\n")

    writer = threading.Thread(target=write)
    writer.start()
    outcome = outcome_of(f"#include <v.h>\n{KERNEL}", one, library)
    writer.join()
    assert outcome.files.uncacheable == f"header {one}/v.h is not a regular file"


@pytest.mark.parametrize("begin", ["../", "./../"])
def test_a_build_with_a_header_found_by_a_relative_path_is_not_kept(one, library, begin):
    above = f"{begin}{'../' * 20}{str(one.parent)[1:]}/two"
    asks = f'#if __has_include("{above}/v.h")\n#define VALUE 1\n#endif'
    for line, flags in (
        ("#include <v.h>", (f"-I{above}",)),
        (f'#include "{above}/v.h"', ()),
        (asks, ()),
    ):
        outcome = outcome_of(f"{line}\n{KERNEL}", one, library, flags=flags, search=())
        assert "was found by a relative path" in outcome.files.uncacheable


def test_an_unreadable_header_is_not_skipped_silently(one, library):
    (one / "v.h").symlink_to("v.h")  # root can read everything except a loop of links
    files = files_of(f"#include <v.h>\n{KERNEL}", one, library)
    assert "v.h may not be read" in files.uncacheable


# --- during a build ------------------------------------------------------------------------------


def rewritten(folder: Path) -> None:
    (folder / "opt.h").write_text("#define VALUE 2\n")


def swapped(folder: Path) -> None:
    """The folder is replaced by one with the same texts and a header that the compiler did not find."""
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    folder.rename(f"{folder}-away")
    other.rename(folder)
    (folder / "new.h").write_text("")


def edited_with_its_old_times(folder: Path) -> None:
    times = (folder / "opt.h").stat()
    rewritten(folder)
    os.utime(folder / "opt.h", ns=(times.st_atime_ns, times.st_mtime_ns))


DURING = {
    "removed": lambda folder: (folder / "opt.h").unlink(),
    "created": lambda folder: (folder / "new.h").write_text(""),
    "renamed away": lambda folder: folder.rename(f"{folder}-away"),
    "swapped": swapped,
    "edited": rewritten,
    "edited with its old times": edited_with_its_old_times,
    "made a folder": lambda folder: ((folder / "opt.h").unlink(), (folder / "opt.h").mkdir()),
}
READS = {
    "seen": "#if __has_include(<opt.h>)\n#endif\n#define VALUE 1\n",
    "read": "#include <opt.h>\n",
}


@pytest.mark.parametrize("change", DURING)
@pytest.mark.parametrize("reads", READS)
def test_a_build_whose_files_changed_meanwhile_is_not_kept(tmp_path, at_the_end, change, reads):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "opt.h").write_text("#define VALUE 1\n")
    source = f"#if __has_include(<new.h>)\n#error\n#endif\n{READS[reads]}{KERNEL}"

    def build() -> rtcompile.ObjectCode:
        forget_caches()
        options = (f"-I{folder}",)
        return rtcompile.compile(source, options=options, arch="sm_80", fallback="never")

    at_the_end.append(lambda: DURING[change](folder))
    assert build().build.hit is None
    for undone in (False, True):
        if undone:  # the build would be right again, but was not kept
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "opt.h").write_text("#define VALUE 1\n")
        try:
            assert build().build.hit is None
        except rtcompile.CompileError:
            assert not undone


def test_a_header_of_the_toolkit_that_changed_meanwhile_has_no_known_contents(
    one, library, at_the_end
):
    header = one.parent / "two/v.h"
    an_hour_ago = time.time() - 3600
    os.utime(header, (an_hour_ago, an_hour_ago))
    search = [SearchDir("cudart", str(header.parent))]
    at_the_end.append(lambda: header.write_text("#define VALUE 2\n"))
    outcome = outcome_of(f"#include <v.h>\n{KERNEL}", one, library, search=search)
    assert isinstance(outcome, Compiled)
    assert outcome.files.newest_ns


# --- without probes ----------------------------------------------------------------


def test_slots_are_made_writable_by_whole_pages(monkeypatch):
    seen: list[tuple[int, int]] = []

    class Libc:
        @staticmethod
        def mprotect(address: Any, size: Any, _: int) -> int:
            seen.append((address.value, size.value))
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Libc)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGESIZE": 65536}.__getitem__)  # as on many Arm servers
    slot = ctypes.c_void_p()
    function = ctypes.CFUNCTYPE(None)(lambda: None)
    assert probes.redirect(ctypes.addressof(slot), function)
    assert seen == [(ctypes.addressof(slot) // 65536 * 65536, 65536)]
    assert slot.value == ctypes.cast(function, ctypes.c_void_p).value


@needs_host_compiler
def test_a_library_without_such_slots_is_not_observed(tmp_path):
    assert probes.install(ctypes.CDLL("libc.so.6")) is False
    library = tmp_path / "libother.so"
    source = '#include <cstdlib>\nextern "C" char* nvrtcVersion() { return getenv("A"); }'
    ran("g++", "-shared", "-fPIC", "-xc++", "-", "-o", library, input=source, check=True)
    assert probes.install(ctypes.CDLL(str(library))) is False


@from_table
def test_probes_that_miss_an_access_are_not_used(monkeypatch, lost):
    here = os.fsencode(os.path.abspath(worker.__file__))
    seen = {
        "absent": [*worker._ABSENT],
        "opened": [(here,)],
        "problem": "",
        **lost,
    }
    log = f"#error {worker._SEEN_ALL.decode()}"
    monkeypatch.setattr(worker, "_compile", lambda *given: {"error": "error", "log": log})
    monkeypatch.setattr(probes, "end", lambda: seen)
    assert worker.probes_see_all() is (not lost)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param("", "True", id="a known version, checked here"),
        pytest.param("nvrtc._LAST_OBSERVED = (12, 3)", "True", id="another version"),
        pytest.param(
            "nvrtc._LAST_OBSERVED = (12, 3); nvrtc._ABSENT = (b'elsewhere', b'elsewhere')",
            "False",
            id="another version, of which a file access is not seen",
        ),
    ],
)
def test_what_a_version_is_known_for_is_true_and_others_are_checked(library, change, expected):
    libraries = os.pathsep.join((*library.preload, library.path))
    program = (
        f"import os; from rtcompile.workers import libraries as nvrtc; os.chdir('/')\n"  # as a zygote
        f"{change}\nnvrtc.load({libraries!r})\n"
        "print(nvrtc._is_observed and nvrtc.probes_see_all())"
    )
    done = python(program, check=True)
    assert done.stdout.strip() == expected


def test_absolute_paths_below_the_jobs_folder_are_its_own(tmp_path, monkeypatch):
    # NVRTC 13.5 looks for relative paths by absolute ones.
    monkeypatch.chdir(tmp_path)
    observed = probes._Observation({"name": b"kernel.cu"}, reports=True)
    folder = os.getcwdb()
    paths = (
        b"t.h",
        folder,
        folder + b"/rtcompile-headers/t.h",
        folder + b"-other/t.h",
        b"/usr/t.h",
    )
    assert [observed.is_ours(path) for path in paths] == [True, True, True, False, False]
