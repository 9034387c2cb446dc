"""Tests of the decision about each class of rejected source, with real messages of NVRTC 12 and 13."""

import re
from pathlib import Path

import pytest

from rtcompile import toolkit
from rtcompile.compilers import nvrtc
from rtcompile.messages import facts
from rtcompile.messages.available import Declared, missing_header
from rtcompile.messages.fallback import decide, is_device_code
from rtcompile.request import option_table
from rtcompile.request import options as compiler_options
from rtcompile.request.units import Compiled, CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.search import find
from tests.tables import from_table
from tests.toolkits import needs_host_compiler

# A class is a file: its folder names the expected decision, its comments have "options:" and "arch:".
CLASSES = sorted((Path(__file__).parent / "source_classes").glob("*/*.cu"))
ACTIONS = {"nvcc": "nvcc", "flags": "add-flags", "error": "error"}


@pytest.fixture(scope="module", params=["12", "13"])
def toolchain(request: pytest.FixtureRequest) -> Toolchain:
    if request.param == "12":
        return toolkit.current()
    prefix = request.getfixturevalue("cuda13_prefix")
    found = find({}, [str(prefix)], usual_roots=())
    return found._replace(host_compiler=toolkit.current().host_compiler)


def compiled(
    source: str, name: str, toolchain: Toolchain, more: tuple[str, ...] = ()
) -> Compiled | CompileFailure:
    arch = Arch.parse(comment_value(source, "arch") or "sm_90a")
    library = toolchain.require_nvrtc()
    options = compiler_options.parse(comment_value(source, "options").split()).with_defaults()
    flags = option_table.for_nvrtc(
        options.adding(*more),
        arch,
        "cubin",
        library.version_pair,
        [d.path for d in toolchain.search],
    )
    unit = TranslationUnit(source, name, flags, (), "cubin", arch)
    return nvrtc.compile(unit, library, limits=Limits(), search=toolchain.search)


def comment_value(source: str, what: str) -> str:
    match = re.search(rf"^// {what}: (.*)$", source, re.MULTILINE)
    return match[1] if match else ""


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "path",
    [
        # Other classes include Thrust and CUB in the host's way, which take as long to read.
        pytest.param(
            path,
            marks=[pytest.mark.slow] * (path.stem in ("thrust_in_kernel", "cub_umbrella")),
            id=f"{path.parent.name}-{path.stem}",
        )
        for path in CLASSES
    ],
)
@pytest.mark.some
@needs_host_compiler
def test_the_decision_about_a_rejected_source_matches_its_class(path, toolchain):
    source = path.read_text()
    failure = compiled(source, path.name, toolchain)
    assert isinstance(failure, CompileFailure), "NVRTC accepts it, so it belongs to no class"

    decision = decide(
        failure.log,
        source=source,
        name=path.name,
        options=comment_value(source, "options").split(),
        package_of=missing_header,
        declared=Declared(toolchain),
        was_read=failure.trace or (),
    )

    assert decision.action == ACTIONS[path.parent.name], failure.log


@pytest.mark.needs_compiler
@pytest.mark.some
@pytest.mark.parametrize(
    "path", [p for p in CLASSES if p.parent.name == "flags"], ids=lambda path: path.stem
)
def test_added_flags_are_the_missing_ones(path, toolchain):
    source = path.read_text()
    flags: tuple[str, ...] = ()
    outcome = compiled(source, path.name, toolchain)
    while isinstance(outcome, CompileFailure):
        decision = decide(outcome.log, source=source, name=path.name, declared=Declared(toolchain))
        assert not {*decision.flags} <= {*flags}, outcome.log
        flags += decision.flags
        outcome = compiled(source, path.name, toolchain, flags)


@pytest.mark.needs_compiler
@pytest.mark.some(1)
def test_every_added_include_declares_the_missing_name(toolchain):
    headers = {*facts.STD.values(), *facts.GLOBAL.values()}
    types = [name for name in facts.GLOBAL if name.endswith("_t")]
    lines = [f"#include <{header}>" for header in sorted(headers)]
    lines += [f"namespace n{i} {{ using std::{n}; }}" for i, n in enumerate(facts.STD)]
    lines += [f"using t{i} = ::{name};" for i, name in enumerate(types)]
    lines += [
        f"__device__ auto v{i} = {name};"
        for i, name in enumerate(facts.GLOBAL)
        if name not in types
    ]

    outcome = compiled("\n".join(lines), "kernel.cu", toolchain)

    assert isinstance(outcome, Compiled), outcome.log


@pytest.mark.needs_compiler
@from_table
@needs_host_compiler
def test_the_decision_about_a_log_follows_its_errors(log, action):
    declared = Declared(toolkit.current())

    decision = decide(log, name="k.cu", package_of=missing_header, declared=declared)

    assert decision.action == action


@from_table
def test_the_declaration_around_a_line_decides_whether_it_is_device_code(source, device):
    before = source[: source.index("@")]
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1

    assert is_device_code(source.replace("@", " "), line, column) is device


@pytest.mark.needs_compiler
@from_table
@needs_host_compiler
def test_declarations_are_found_in_the_headers_of_nvcc(inputs, name, expected):
    assert getattr(Declared(toolkit.current()), inputs)(name) is expected


def test_without_a_host_compiler_only_members_of_std_are_known():
    declared = Declared(toolkit.current()._replace(host_compiler=None))

    assert declared.std("map")
    assert not declared.host_header("unistd.h")
    assert not declared.c_library("puts")


@pytest.mark.parametrize(("line", "action"), [(52, "error"), (51, "nvcc")])
def test_a_line_directive_does_not_hide_which_function_an_error_is_in(line, action):
    source = '#define N 3\n#line 50 "user.cu"\n// ours\nvoid host() { throw 1; }\n__device__ void device() { throw 1; }\n'
    declared = Declared(toolkit.current())
    log = f"user.cu({line}): error: device code does not support exception handling\n  x\n  ^\n"
    assert decide(log, source=source, name="kernel.cu", declared=declared).action == action
