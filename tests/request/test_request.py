"""Requests are validated at construction."""

import enum
import itertools
import pickle
import sys
from pathlib import Path

import numpy
import pytest

from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet
from rtcompile.request import object_code as objects
from rtcompile.request import units, values
from rtcompile.request.object_code import BuildInfo, ObjectCode
from rtcompile.request.request import CompileRequest, wanted_backend, with_headers
from rtcompile.request.values import Arch
from tests.processes import ran
from tests.tables import from_table

ARRAY = numpy.zeros(2)  # its truth is undefined


def test_sequences_become_tuples_and_an_arch_is_parsed():
    request = CompileRequest(
        "x", options=["-G"], arch="sm_90a", name_expressions={"a": "f<int>"}.values()
    )
    assert request.options == ("-G",)
    assert request.arch == Arch(9, 0, "a")
    assert request.name_expressions == ("f<int>",)
    assert CompileRequest("x", options="-I /x").options == ("-I /x",)


def test_two_spellings_of_one_architecture_are_one():
    for arch in ("sm_90", "9.0", Arch(9, 0, "")):
        assert CompileRequest("x", arch=arch, options=("-arch=sm_90",)).arch == Arch(9, 0, "")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"backend": "auto"}, "auto nvcc nvrtc auto"),
        ({"backend": "nvcc"}, "nvcc nvcc nvcc nvrtc-first"),
        ({"backend": "nvrtc"}, "nvrtc nvrtc nvrtc nvrtc"),
        ({"target": "fatbin"}, "nvcc nvcc nvcc nvcc"),
    ],
)
def test_fallback_says_what_auto_means_and_nvrtc_first_what_nvcc_means(given, wanted):
    fallbacks = ("auto", "always", "never", "nvrtc-first")
    found = [wanted_backend(CompileRequest("x", **given), each) for each in fallbacks]
    assert " ".join(found) == wanted


@from_table
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        CompileRequest(**{"source": "x", **arguments})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "name",
    ["", "/a.h", "a//b.h", "./a.h", "a/../b.h", "a/", "a\n.h", 'a".h', "a>.h", "<a.h", "a\\b.h"],
)
def test_a_header_name_that_is_no_path_below_a_folder_is_rejected(name):
    with pytest.raises(InvalidRequest, match="not a valid name"):
        CompileRequest("", headers={name: ""})


def test_names_may_be_as_long_as_a_file_system_takes():
    part = "ü" * 127 + "x"  # 255 bytes
    longest = "/".join(["x", part, part, part, "y" * 254])
    assert len(longest.encode()) == 1024
    texts = {**dict.fromkeys([part, longest], ""), "tile.cuh": "#define N 4"}
    request = CompileRequest("", headers=texts, name=f"{'d' * 300}/{'ü' * 100}")
    assert dict(request.headers) == texts
    for name in ("ü" * 128, longest + "z"):
        with pytest.raises(InvalidRequest, match="not a valid name"):
            CompileRequest("", headers={name: ""})
    with pytest.raises(InvalidRequest, match="200 bytes"):
        CompileRequest("", name="ü" * 100 + "x")


def test_ten_thousand_headers_are_taken():
    texts = {f"{number}.h": "" for number in range(10_000)}
    assert len(CompileRequest("", headers=texts).headers) == 10_000
    with pytest.raises(InvalidRequest, match="more than 10,000"):
        CompileRequest("", headers={**texts, "more.h": ""})


def test_an_iterable_without_end_is_rejected():
    assert len(values.items("link", iter(range(1_000_000)), "source strings")) == 1_000_000
    endless = itertools.count()
    with pytest.raises(InvalidRequest, match="link has more than 1,000,000 elements"):
        CompileRequest("", link=endless)
    assert next(endless) == 1_000_001  # it was read no further


@pytest.mark.parametrize("value", [1, 5, numpy.int64(1), "3", 3.0, None, ARRAY], ids=repr)
def test_an_integer_may_equal_its_limits(value):
    for limit in (2, 4, numpy.int64(2), numpy.int64(4)):
        assert values.whole("count", limit, 2, 4) == limit
    with pytest.raises(InvalidRequest, match="count must be an integer from 2 to 4, not"):
        values.whole("count", value, 2, 4)


def test_the_folder_above_a_link_is_kept_in_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert values.absolute("link/../a.h") == f"{tmp_path}/link/../a.h"
    assert values.absolute("../a.h") == f"{tmp_path}/../a.h"
    assert values.absolute("./a//b.h") == f"{tmp_path}/a/b.h"
    assert values.absolute("/link/../a.h") == "/link/../a.h"
    tmp_path.rmdir()
    assert values.absolute("/a//b.h") == "/a/b.h"
    with pytest.raises(InvalidRequest, match=r"'a\.h' is looked up in the working directory, wh"):
        values.absolute("a.h")


def test_architectures_are_ordered_by_capability_and_suffix():
    ordered = [Arch.parse(name) for name in ("75", "80", "86", "90", "90a", "100", "100a", "100f")]
    assert sorted({*ordered}) == ordered
    for at, arch in enumerate(ordered):
        copies = [other.replace() for other in ordered]
        assert [arch < other for other in copies] == [at < place for place in range(len(ordered))]
        assert [arch <= other for other in copies] == [at <= place for place in range(len(ordered))]
    with pytest.raises(TypeError):
        assert ordered[0] < "sm_80"


def test_a_path_is_a_str_bytes_or_an_object_that_stands_for_one():
    for path in ("/a", b"/a", Path("/a"), numpy.str_("/a")):
        assert values.path("path", path) == "/a"
        assert type(values.path("path", path)) is str
    for wrong in (3, None, "", b"", "a\0b", "\ud800", ["/a"]):
        with pytest.raises(InvalidRequest, match="path must be a path, not"):
            values.path("path", wrong)


def test_the_kind_of_code_follows_from_the_architectures_name():
    kinds = {"90a": "cubin", "9.0": "cubin", "sm_90": "cubin", "compute_90": "ptx"}
    for arch, target in kinds.items():
        given = "".join(["cu", "bin"])  # equal to the default, and another object
        assert CompileRequest("", arch=arch, target=given).target == target
    with pytest.raises(InvalidRequest, match="the options name compute_90"):
        CompileRequest("", arch="sm_90", target=given, options=("-arch=compute_90",))
    request = CompileRequest("", arch="sm_90", backend="nvcc", target="fatbin", name="a.cu")
    assert (request.backend, request.target, request.name) == ("nvcc", "fatbin", "a.cu")


def test_headers_become_a_folder_that_is_searched_first():
    request = CompileRequest("", options=("-I/a",))
    assert with_headers(request) is request
    searched = with_headers(request.replace(headers={"a.h": "text"}))
    assert searched.options[0].startswith("-I/")
    assert searched.options[1:] == ("-I/a",)
    assert with_headers(searched) is searched


def test_a_request_imports_little():
    # Every hit in a new process waits for these imports.
    code = "import sys, rtcompile.request.request; print(*{'typing', 'dataclasses', 'collections'} & {*sys.modules})"
    root = str(Path(values.__file__).parents[2])
    done = ran(sys.executable, "-S", "-c", code, env={"PYTHONPATH": root}, check=True)
    assert done.stdout.split() == []


def test_the_numbers_of_an_architecture_have_limits():
    assert str(Arch(99, 9)) == "sm_999"
    assert Arch.parse("999") == Arch(99, 9)
    assert Arch(0, 0).number == 0


def test_subclasses_of_str_and_any_iterables_are_converted():
    class Flag(str, enum.Enum):
        DEBUG = "-G"

    request = CompileRequest(
        numpy.str_("x"), options=[Flag.DEBUG], name_expressions=(f"f<{i}>" for i in range(2))
    )
    assert type(request.source) is str
    assert [type(option) for option in request.options] == [str]
    assert request.options == ("-G",)
    assert request.name_expressions == ("f<0>", "f<1>")
    assert CompileRequest("", link=numpy.array(["a", "b"])).link == ("a", "b")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: Arch(100, 0), "must be an int from 0 to", id="100.0"),
        pytest.param(lambda: Arch(-1, 0), "must be an int from 0 to", id="-1.0"),
        pytest.param(lambda: Arch(9, 10), "must be an int from 0 to", id="9.10"),
        pytest.param(lambda: Arch(9, -1), "must be an int from 0 to", id="9.-1"),
        pytest.param(lambda: Arch("9", 0), "major must be an int", id="major"),
        pytest.param(lambda: Arch(9, 0, "b"), "suffix must be", id="suffix"),
        pytest.param(lambda: ObjectCode("x", "cubin", Arch(9, 0)), "code must be bytes", id="code"),
        pytest.param(lambda: ObjectCode(b"", "cubin", "sm_90"), "arch must be an Arch", id="arch"),
        pytest.param(lambda: ObjectCode(b"", "exe", Arch(9, 0)), "kind must be one of", id="kind"),
    ],
)
def test_values_are_checked_at_construction(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()


def test_the_repr_of_code_and_of_a_build_omits_what_is_long():
    names = {f"f<{i}>": f"_Zf{i}" for i in range(9)}
    code = ObjectCode(b"\x7f" * 538735, "cubin", Arch(9, 0, "a"), names)
    shown = "<ObjectCode: cubin for sm_90a, 538,735 bytes: f<0>, f<1>, f<2>, …>"
    assert repr(code) == shown
    assert repr(ObjectCode(b"x", "ptx", Arch(9, 0))) == "<ObjectCode: ptx for sm_90, 1 bytes>"
    assert repr(made("nvrtc", 3)).endswith("f<0>, f<1>, f<2>>")
    shown = repr(BuildInfo("nvrtc", "a long log", why="new"))
    assert shown.startswith("BuildInfo(backend='nvrtc', milliseconds=0.0, hit=None, why='new', ")
    assert not [name for name in ("log", "headers", "files") if name in shown]


def test_a_copy_of_a_build_keeps_its_files():
    files = FileSet()
    build = BuildInfo("nvcc", "log", files, why="why").replace(log="other", hit="disk")
    assert build.files is files
    assert build == BuildInfo("nvcc", "other", files, hit="disk", why="why")


def test_object_code_pickles():
    code = ObjectCode(b"\x7fELF", "cubin", Arch(9, 0), {"f<int>": "_Z1f"}, BuildInfo("nvrtc"))
    again = pickle.loads(pickle.dumps(code))
    assert (again.code, dict(again.lowered_names)) == (code.code, {"f<int>": "_Z1f"})


# --- the files of objects -------------------------------------------------------------------------


def made(backend, names=2):
    build = BuildInfo(
        backend, "log ü\udcff", why="needs NVCC", compiler="12.9.86", compiled_in=1.25
    )
    symbols = {f"f<{number}>": f"_Z{number}" for number in range(names)}
    return ObjectCode(b"\x7fELF\0\xff", "object", Arch(9, 0, "a"), symbols, build)


@pytest.mark.parametrize("names", range(3))
def test_an_object_is_read_from_its_file_as_it_was_written(names):
    code = made("nvcc", names)
    data = objects.encode("key", code, {"source": "12ab", "option std": ""})

    again = objects.decode("key", data)
    assert again == code.replace(build=again.build)
    assert dict(again.lowered_names) == dict(code.lowered_names)
    seconds = pytest.approx(1.25, abs=0.1)
    assert again.build == code.build.replace(compiled_in=seconds)
    assert objects.key_inputs("key", data) == {"source": "12ab", "option std": ""}
    assert objects.key_inputs("key", objects.encode("key", code, {})) == {}


def test_a_file_of_another_key_or_of_other_fields_is_no_object():
    data = objects.encode("key", made("nvrtc"), {"source": "12ab"})
    for key, damaged in (("other", data), ("key", data[:-1]), ("key", b"")):
        assert objects.decode(key, damaged) is None
        assert objects.key_inputs(key, damaged) == {}
    fields = sealed.unseal("object", "key", data)
    assert objects.decode("key", sealed.seal("object", "key", fields)) is not None
    for position, value in ((1, b"exe"), (2, b"sm_x"), (8, b"soon")):
        changed = [*fields[:position], value, *fields[position + 1 :]]
        assert objects.decode("key", sealed.seal("object", "key", changed)) is None
    for number in range(9):
        assert objects.key_inputs("key", sealed.seal("object", "key", fields[:number])) == {}
    for number in (*range(9), 10, 12):
        assert objects.decode("key", sealed.seal("object", "key", fields[:number])) is None


def test_a_hit_has_what_is_known_of_the_build():
    for backend in ("nvrtc", "nvcc"):
        found = objects.hit(made(backend), FileSet(), "disk", 2.5)
        assert (found.code, found.kind, found.arch) == (b"\x7fELF\0\xff", "object", Arch(9, 0, "a"))
        assert found.lowered_names == {"f<0>": "_Z0", "f<1>": "_Z1"}
        build = found.build
        assert (build.hit, build.milliseconds, build.why) == ("disk", 2.5, "needs NVCC")
        assert (build.backend, build.compiler, build.compiled_in) == (backend, "12.9.86", 1.25)
        assert build.files == FileSet()
        assert build.headers == ()
    assert BuildInfo("nvrtc").files.uncacheable


# --- runs of compilers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("a\n", "b\n", "a\nb\n"), ("a", "b", "a\nb"), ("", "b", "b"), ("a", "", "a"), ("", "", "")],
)
def test_each_log_begins_on_its_own_line(first, second, expected):
    assert units.joined_logs(first, second) == expected


def test_runs_with_one_deadline_share_their_time(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    limits = units.Limits(units.TimeLimit(5.0))
    assert limits.timeout == 5.0
    now = 104.0
    assert limits.timeout.left == 1.0
    assert limits.after_waiting(3.0) == 4.0
    now = 109.0
    assert limits.timeout.left == 0.0
    assert units.TimeLimit(5.0, since=107.0).left == 3.0
    assert units.Limits(5.0).after_waiting(3.0) == 5.0


def test_compilers_get_few_variables_and_workers_fewer():
    given = {"LANG": "C", "LD_LIBRARY_PATH": "/l", "PATH": "/b", "HOME": "/h", "TOKEN": "secret"}
    shared = {"LANG": "C", "LD_LIBRARY_PATH": "/l"}
    assert units.worker_environ(given) == {**shared, "CUDA_CACHE_DISABLE": "1"}
    assert units.nvcc_environ(given) == {**shared, "PATH": "/b", "HOME": "/h"}
    # NVCC's variables are split as a shell splits them.
    assert units.nvcc_words({}) == ((), ())
    assert units.nvcc_words({"NVCC_APPEND_FLAGS": "-w '-DX=a b'"}) == ((), ("-w", "-DX=a b"))
    assert units.nvcc_words({"NVCC_PREPEND_FLAGS": "-G"}) == (("-G",), ())
