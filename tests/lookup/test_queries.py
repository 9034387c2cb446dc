"""What a query is named by, which hits are counted and reported, and what is kept for which query."""

import types

import pytest

from rtcompile.build import pipeline
from rtcompile.errors import UnsupportedArch
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet
from rtcompile.lookup import driver, environment
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import query_of
from rtcompile.request.object_code import Found, ObjectCode, Record
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import LinkInput
from rtcompile.request.values import Arch
from rtcompile.settings import Settings
from rtcompile.store.folder import take_counts
from tests.lookups import CODE, build, found, look

pytestmark = pytest.mark.usefixtures("absent_device")


def query(request):
    return query_of(request, environment.current().settings)


def of_code(*options, **more):
    return query(CompileRequest(CODE % 1, options=options, **more))


def test_only_a_request_with_a_relative_path_depends_on_the_directory(tmp_path, monkeypatch):
    identities = {}
    for options in ((), ("-DN=1 -I/include",), ("-DN=1", "-Iinclude"), ("-I/a -Iinclude",)):
        request = CompileRequest(CODE % 1, options=options)
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / folder)
            identities[folder] = query(request).identity
        is_relative = "include" in options[-1:] or any("-Iinclude" in each for each in options)
        assert (identities["one"] != identities["two"]) is is_relative, options


def test_a_relative_request_in_a_removed_directory_has_no_identity(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert of_code("-Iinclude").identity is None
    assert pipeline.search(of_code("-Iinclude"), "nothing") is None
    assert of_code("-I/include").identity is not None


def test_an_architecture_that_may_be_passed_over_is_another_query():
    given = of_code("-arch=sm_90")
    may_give_way = of_code("-arch=sm_90", may_pass_over_arch=True)
    assert given.identity != may_give_way.identity
    assert of_code().identity == of_code(may_pass_over_arch=True).identity


def test_linked_code_is_part_of_a_query_by_its_contents():
    codes = [ObjectCode(data, "cubin", Arch(8, 0)) for data in (b"one", b"two", b"one")]
    inputs = [LinkInput("cubin", "a", b"one"), LinkInput("cubin", "b", b"one")]
    inputs.append(LinkInput("fatbin", "a", b"one"))
    one, two, same, *others = [of_code(link=(each,)).identity for each in (*codes, *inputs)]
    assert one == same
    assert len({one, two, *others, of_code().identity}) == 6
    assert of_code(link=("a.cubin",)).identity is None, "a file may change"
    for invalid in ((1, 2), types.SimpleNamespace(data=b"")):
        assert of_code(link=(invalid,)).identity is None, "planning raises the error"


@pytest.mark.parametrize("folder", ["/", "/\xff"])
def test_a_query_for_another_cache_is_not_looked_up_in_this_one(folder):
    settings = Settings(folder, cache_on_disk=True)
    assert query_of(CompileRequest(CODE % 1), settings).identity is None


@pytest.mark.needs_compiler
def test_an_index_entry_with_other_fields_is_not_used(cache):
    request = build(CODE % 1)
    entry, name = next((cache / "index").iterdir()), query(request).name()
    fields = sealed.unseal("record", name, entry.read_bytes())
    for damaged in (fields[:1], fields[:-1], [*fields, b""]):
        entry.write_bytes(sealed.seal("record", name, damaged))
        entry.chmod(0o600)
        again = query(request)
        again.environment.memory = None
        assert pipeline.search(again, "nothing") is None
        assert not again.failed


def test_without_a_device_a_query_has_no_capability(monkeypatch):
    def lacking():
        raise UnsupportedArch("no device")

    monkeypatch.setattr(lookup, "compute_capability", lacking)
    assert of_code().capability is None


# --- hits -------------------------------------------------------------------------------------------


def test_devices_that_nothing_knows_of_have_no_common_capability(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("_of_initialised", "_of_nvml"):
        monkeypatch.setattr(driver, name, set)
    assert driver.capability_of_all() is None


def test_a_query_has_another_name_for_each_toolchain(monkeypatch):
    one, names = of_code(), []
    for letter in ("b", "b", "c", "a", ""):
        signature = letter * 2
        monkeypatch.setattr(one.environment, "signature", lambda given=signature: given)
        names.append(one.name())
    assert names[0] == names[1]
    assert len({*names}) == 4
    assert names[-1] == ""


@pytest.mark.needs_compiler
def test_only_hits_that_count_are_counted(cache, monkeypatch):
    request = build(CODE % 1)
    take_counts(str(cache))
    assert pipeline.is_cached(request, environment.current().settings)
    assert not take_counts(str(cache))
    assert look(request)
    assert take_counts(str(cache)) == {"hits": 1}
    of_bundle = ObjectCode(b"", "cubin", Arch(8, 0))
    of_bundle = of_bundle.replace(build=of_bundle.build.replace(hit="bundle"))
    in_bundle = ("bundle", lambda _: Found(of_bundle, Record(FileSet())), "nothing")
    monkeypatch.setattr(pipeline, "LEVELS", (in_bundle,))
    assert look(request)
    assert not take_counts(str(cache))


@pytest.mark.needs_compiler
@pytest.mark.parametrize("options", [(), ("-std=gnu++17",)])
def test_code_from_the_index_has_the_notes_of_its_build(cache, options):
    request = CompileRequest(CODE % 1, options=options)

    built = pipeline.build(request, environment.current().settings)
    assert found(request).build.notes == built.build.notes
    assert bool(built.build.notes) is bool(options)


@pytest.mark.parametrize(("object_key", "has_plan"), [("", True), ("key", False), ("", False)])
@pytest.mark.needs_compiler
def test_code_without_an_object_in_the_cache_gets_no_index_entry(cache, object_key, has_plan):
    build(CODE % 1)
    before = {*(cache / "index").iterdir()}
    new = query(CompileRequest(CODE % 2))
    assert new.name()
    if has_plan:
        from rtcompile.build import planned

        planned.plan_of(new)
    code = ObjectCode(b"", "cubin", Arch(8, 0))
    lookup.keep(new, Found(code, Record(FileSet(), object_key)), is_planned=has_plan)
    assert {*(cache / "index").iterdir()} == before


@pytest.mark.needs_compiler
def test_a_failure_is_noted_for_the_next_process_only_in_the_same_environment(cache, monkeypatch):
    build(CODE % 1)
    unknown, failed = of_code(), query(CompileRequest(CODE % 3))
    entries = len(list((cache / "index").iterdir()))
    lookup.note_failure(failed)
    assert len(list((cache / "index").iterdir())) == entries + 1
    for request, expected in ((failed.request, True), (unknown.request, False)):
        again = query(request)
        again.environment.memory = None
        pipeline.search(again, "nothing")
        assert again.failed is expected
    nameless = query(CompileRequest(CODE % 4, link=("a.cubin",)))
    lookup.note_failure(nameless)
    late = query(CompileRequest(CODE % 5))
    assert late.name()
    monkeypatch.setenv("CUDA_PATH", "/another")
    lookup.note_failure(late)
    assert len(list((cache / "index").iterdir())) == entries + 1
