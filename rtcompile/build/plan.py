"""Makes every decision about a build once, before a header is read or a compiler runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from rtcompile import toolkit
from rtcompile.errors import InvalidRequest, UnsupportedArch, own, shown, warn
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import SearchDir
from rtcompile.files.sealed import content_digest
from rtcompile.lookup import find as lookup
from rtcompile.lookup.environment import CHECK_SECONDS
from rtcompile.lookup.find import Query, query_of
from rtcompile.named import NamedTuple
from rtcompile.request import arch as archs
from rtcompile.request import options as compiler_options
from rtcompile.request import units
from rtcompile.request.arch import Choice
from rtcompile.request.key import KeyInputs
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.options import Options
from rtcompile.request.request import EITHER, CompileRequest, is_source, wanted_backend
from rtcompile.request.units import LinkInput
from rtcompile.request.values import Arch, absolute
from rtcompile.request.values import path as checked_path
from rtcompile.settings import Settings
from rtcompile.toolkit.model import Toolchain

_warned_ignored_arch: set[tuple[str, Arch]] = set()


@lru_cache(maxsize=16)  # a batch's kernels often have the same
def effective_options(options: tuple[str, ...], debug: bool) -> Options:
    """Return the options that a request is built with."""
    return compiler_options.parse(options).with_defaults(debug=debug)


class Plan(NamedTuple):
    """All decisions about one build; fixes after an error replace single fields."""

    request: CompileRequest
    options: Options
    choice: Choice
    toolchain: Toolchain
    search: tuple[SearchDir, ...]
    links: tuple[LinkInput, ...]
    key_inputs: KeyInputs
    linked_files: FileSet  # what the sources among the elements of ``link=`` depend on

    @property
    def compiler_target(self) -> str:
        """The kind of the compiler's output before linking."""
        if not self.must_link:
            return self.choice.target
        return "ltoir" if self.options.lto else "object"

    @property
    def is_for_this_device(self) -> bool:
        """Whether the caller named no architecture."""
        return self.request.arch is None and not self.options.arch

    @property
    def must_link(self) -> bool:
        """Whether the compiler's output goes through the linker."""
        # The user links relocatable PTX. The linker makes PTX only from LTO-IR.
        programs = {"cubin": self.options.rdc or self.options.lto, "ptx": self.options.lto}
        return bool(self.links) or programs.get(self.choice.target, False)


def plan(query: Query, request: CompileRequest, build: Callable[[Query], ObjectCode]) -> Plan:
    """Make all decisions about a build. `request` is the query's `with_headers`; `build` compiles sources to link."""
    settings, capability = query.settings, query.capability
    options = effective_options(request.options, settings.debug)
    backend = wanted_backend(request, settings.fallback)
    # NVCC runs programs, such as wrappers of a host compiler, that are edited more often than NVRTC.
    toolchain = toolkit.current(0.0 if backend == "nvcc" else CHECK_SECONDS)
    if backend in EITHER and toolchain.nvrtc is None and toolchain.nvcc is not None:
        backend = "nvcc"
    version = _version(backend, toolchain, settings)
    try:
        choice = choose_architecture(request, options, version, settings.ptx, capability)
    except UnsupportedArch as unsupported:
        # A `RawModule` ignores an ``-arch`` option that the device cannot run.
        ignores_arch = request.may_pass_over_arch and request.arch is None and options.arch
        if not ignores_arch or capability is None:
            raise
        without = options._replace(arch=())
        choice = choose_architecture(request, without, version, settings.ptx, capability)
        problem = str(unsupported).partition(";")[0]
        if (problem, choice.arch) not in _warned_ignored_arch:
            _warned_ignored_arch.add((problem, choice.arch))
            warn(
                f"{problem}; {request.name} is compiled for {choice.arch} instead. Remove the architecture "
                "from the options, or pass arch= for another architecture than the device's"
            )
        request = request.replace(arch=choice.arch, target=choice.target)
    for_links = settings._replace(jit=False) if query.only_cached else settings
    links, linked_files = _linker_inputs(request, for_links, build, choice.arch)
    if links and not (options.rdc or options.lto):
        is_lto = any(link.kind == "ltoir" for link in links)
        options = options.adding("-dlto" if is_lto else "-rdc=true")
    # Headers depend on ``__CUDA_ARCH__``, so none is read before the architecture is known.
    search = own_directories(options) + toolchain.search + own_directories(options, last=True)
    paths_matter = options.writes_paths
    # If the source is a file, line information refers to it, and quoted includes are next to it.
    is_file = paths_matter and os.path.isabs(request.name) and os.path.isfile(request.name)
    name = request.name
    # Quoted includes are searched for in that folder first, so no other user may be able to write to it.
    if paths_matter and not is_file and not sealed.can_be_swapped(settings.cache_dir):
        name = source_path(request, settings)
    key_inputs = KeyInputs(
        source=request.source,
        source_digest=request.source_digest,
        name=name,
        options=options.key_fields,
        arch=choice.arch,
        target=choice.target,
        name_expressions=request.name_expressions,
        backend=backend,
        compilers=_builds(toolchain, options, settings),
        search=search,
        links=tuple(f"{given.kind} {content_digest(given.data)}" for given in links),
        paths_matter=paths_matter,
        pre_includes=options.pre_includes,
        texts=request.headers,
        linker=_linker(toolchain),
        allow_fixups=request.allow_fixups,
    )
    return Plan(request, options, choice, toolchain, search, links, key_inputs, linked_files)


def choose_architecture(
    request: CompileRequest,
    options: Options,
    compiler: tuple[int, int],
    virtual: bool,
    capability: tuple[int, int] | None,
) -> Choice:
    """Choose the architecture: ``arch=``, else the options', else the current device's (needs a GPU)."""
    requested = compiler_options.requested_architecture(request, options, capability)
    if requested is not None:
        archs.check(requested.arch, requested.target, compiler)
        return requested
    # Without a device, `compute_capability` raises the error.
    choice = archs.choose(capability or lookup.compute_capability(), compiler, virtual=virtual)
    return choice if request.target == "cubin" else choice._replace(target=request.target)


def own_directories(options: Options, *, last: bool = False) -> tuple[SearchDir, ...]:
    """Return the user's directories that are searched first (or after the toolkit's), labelled by position."""
    label, paths = ("user-last", options.last_dirs) if last else ("user", options.include_dirs)
    if not paths:
        return ()
    return tuple(SearchDir(f"{label}{index}", absolute(path)) for index, path in enumerate(paths))


def _version(backend: str, toolchain: Toolchain, settings: Settings) -> tuple[int, int]:
    if not settings.jit:  # cached code needs no compiler
        either = (toolchain.nvcc, toolchain.nvrtc)
        for found in either if backend == "nvcc" else either[::-1]:
            if found is not None:
                return found.version_pair
    compiler = toolchain.require_nvcc() if backend == "nvcc" else toolchain.require_nvrtc()
    return compiler.version_pair


def lack_of_nvcc(plan: Plan) -> str:
    """Return why NVCC cannot build a plan, and what to install; "" if it can."""
    nvcc, missing = plan.toolchain.nvcc, plan.toolchain.missing
    if nvcc is None:
        return missing.get("nvcc", "nvcc not found")
    if plan.toolchain.host_compiler is None:
        return missing.get("host_compiler", "host_compiler not found")
    if not plan.is_for_this_device:
        return ""
    from rtcompile.lookup import driver

    return driver_problem(nvcc.version_pair, supported) if (supported := driver.version()) else ""


def driver_problem(nvcc: tuple[int, int], driver: int) -> str:
    """Return why a driver (12090 is 12.9) cannot load this NVCC's cubins; ``""`` if it can."""
    major, minor = driver // 1000, driver % 1000 // 10
    if nvcc[0] <= major:
        return ""
    return (
        f"nvcc {nvcc[0]}.{nvcc[1]} makes code for drivers of CUDA {nvcc[0]}; this one is of CUDA "
        f"{major}.{minor}. Install nvcc of CUDA {major}, or a newer driver."
    )


def for_nvcc(options: Options) -> Options:
    """Return the options for NVCC, with those of ``NVCC_PREPEND_FLAGS`` and ``NVCC_APPEND_FLAGS``."""
    try:
        words = units.nvcc_words(getattr(own, "environ", None) or os.environ)
        before, after = (compiler_options.parse(each) for each in words)
    except (InvalidRequest, ValueError) as error:
        raise InvalidRequest(f"NVCC_PREPEND_FLAGS or NVCC_APPEND_FLAGS: {error}") from None
    # Only the request's architecture is kept, since NVCC rejects two.
    return before.merged(options).merged(after)._replace(arch=options.arch)


def _builds(toolchain: Toolchain, options: Options, settings: Settings) -> Mapping[str, str]:
    """Return the identity of each backend's compiler, with the environment's options for it."""
    builds = {"nvrtc": toolchain.nvrtc.build} if toolchain.nvrtc is not None else {}
    # If NVCC must not run, it counts as missing, so cached code of any NVCC is used.
    if toolchain.nvcc is not None and toolchain.host_compiler is not None and settings.jit:
        builds["nvcc"] = toolchain.nvcc.build + nvcc_setting(options)
    return MappingProxyType(builds)


def nvcc_setting(options: Options) -> str:
    """Return the further settings that affect NVCC's output, besides options and compilers."""
    facts, environ = "", getattr(own, "environ", None) or os.environ
    texts = [f"; {name}={environ[name]}" for name in units.NVCC_FLAGS if environ.get(name)]
    if texts:
        facts = "".join(texts)
        with suppress(InvalidRequest):  # a build with NVCC raises this error
            options = for_nvcc(options)
            directories = own_directories(options) + own_directories(options, last=True)
            facts += "".join(f"; -I{directory.path}" for directory in directories)
    chosen = options.get("compiler-bindir")
    if chosen is not None:
        from rtcompile.lookup.environment import on_path
        from rtcompile.toolkit import model

        found = chosen if os.path.isdir(chosen) else on_path(chosen, environ.get("PATH", ""))
        facts += f"; -ccbin {model.of_host_compiler(found or chosen)}"
    return facts


def _linker(toolchain: Toolchain) -> str:
    """Return the linker's identity: nvJitLink's, and NVCC's if it is newer."""
    first, other = toolchain.nvjitlink, toolchain.nvcc
    if first is None:
        return ""
    newer = other is not None and other.version_pair > first.version_pair
    return f"{first.build}, nvcc {other.build}" if other is not None and newer else first.build


def source_path(request: CompileRequest, settings: Settings) -> str:
    """Return the source's path for line information, where debuggers and profilers find it."""
    digest = request.source_digest[:16]
    # With the digest at most 143 bytes, which is the longest name in an eCryptfs.
    end = os.path.basename(request.name).encode()[-126:].decode(errors="ignore")
    return os.path.join(settings.cache_dir, "sources", f"{digest}-{end}")


# --- The elements of `link=` as named bytes for the linker --------------------------------------------

_SOURCE_SUFFIXES = (".cu", ".cuh", ".cpp", ".c")


def _linker_inputs(
    request: CompileRequest, settings: Settings, build: Callable[[Query], ObjectCode], arch: Arch
) -> tuple[tuple[LinkInput, ...], FileSet]:
    """Return `request.link` as linker inputs, and the files that these depend on; `build` compiles sources."""
    if not request.link:
        return (), FileSet()
    items = [linker_input(item, index) for index, item in enumerate(request.link)]
    lto = request.target == "ltoir" or compiler_options.parse(request.options).lto
    lto = lto or any(isinstance(item, LinkInput) and item.kind == "ltoir" for item in items)
    target = "ltoir" if lto else "object"
    found, files = [], FileSet()
    for item in items:
        if isinstance(item, LinkInput):
            found.append(item)
            continue
        if item.link:
            raise InvalidRequest(f"{item.name} has its own link=; pass all inputs to one link=")
        # The program's options (-std, -G, …) apply to each part, unless the part has its own.
        unit = item.replace(
            options=(*request.options, *item.options),
            arch=arch,
            target=target,
            link=(),
            may_pass_over_arch=request.may_pass_over_arch,
        )
        code = build(query_of(unit, settings))
        found.append(LinkInput(code.kind, item.name, code.code))
        files = files.joined(code.build.files)
    return tuple(found), files


def linker_input(item: Any, index: int) -> LinkInput | CompileRequest:
    """Return the bytes of an element of ``link=``, or the source to compile first."""
    if isinstance(item, (LinkInput, CompileRequest)):
        return item
    if isinstance(item, ObjectCode):
        return LinkInput(item.kind, f"link[{index}]", item.code)
    if is_source(item):
        return CompileRequest(item, name=f"link{index}.cu")
    if isinstance(item, (str, os.PathLike)):
        return _file(checked_path(f"link[{index}]", item), index)
    raise InvalidRequest(
        f"link[{index}] is {shown(item)}; it may be a source string, a CompileRequest, "
        "an ObjectCode, or the path of a cubin, PTX, LTO-IR, fatbin, object or archive file"
    )


def _file(path: str, index: int) -> LinkInput | CompileRequest:
    from rtcompile.cubin import kind_of

    data = sealed.read_argument(path, f"link[{index}]: cannot read {path!r}")
    if path.endswith(_SOURCE_SUFFIXES):
        folder = os.path.dirname(absolute(path))
        source = sealed.decoded(data, f"link[{index}]: {path}")
        return CompileRequest(source, name=os.path.basename(path), options=(f"-I{folder}",))
    kind = kind_of(data)
    if kind is None:
        raise InvalidRequest(
            f"link[{index}]: {path!r} is no cubin, PTX, LTO-IR, fatbin, object or archive "
            f"(it begins with {data[:8]!r})"
        )
    return LinkInput(kind, os.path.basename(path), data)
