"""Turns the parts that were found into a `Toolchain`: the search path, and what is missing.

Installed packages declare further folders of headers by entry points; no package is imported. They are
read when the toolkit is searched for, which is at the first build after an installation. ::

    [project.entry-points."rtcompile.headers"]
    mylib = "mylib.include"

adds the folder ``include`` of the package ``mylib``, behind CUDA's and CUTLASS's headers.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata

from rtcompile.files.headers import PROVIDED, SearchDir
from rtcompile.toolkit import catalogue, libraries, model
from rtcompile.toolkit.advice import (
    INSTALL_ANYTHING,
    given,
    install,
    install_nvcc,
    looked_in,
    useless_variables,
    why_missing,
)
from rtcompile.toolkit.catalogue import (
    CUTLASS_ENVIRONMENT,
    HEADER_PARTS,
    HOST_COMPILER_ENVIRONMENT,
    PART,
)
from rtcompile.toolkit.model import Library, Program, Toolchain, version_pair
from rtcompile.toolkit.programs import describe_nvcc, which
from rtcompile.toolkit.roots import Hit, Root, SearchContext, Toolset, cupy_cccl, unfit

GROUP = "rtcompile.headers"  # of entry points by which packages declare folders of headers


class _Draft:
    """A `Toolchain` that is being put together; each part notes how it was found."""

    def __init__(self) -> None:
        self.search: list[SearchDir] = []
        self.versions: dict[str, str] = {}
        self.found_via: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.problems: list[str] = []
        self.depends: list[str] = []
        self.doubts: list[str] = []

    def found(self, name: str, version: str, found_via: str) -> None:
        self.versions[name] = version
        self.found_via[name] = found_via

    def lacks(self, name: str, why: str, *, problem: bool) -> None:
        self.missing[name] = why
        if problem:
            self.problems.append(why)


def assemble(
    where: SearchContext, roots: Sequence[Root], chosen: Toolset | None, shims: str
) -> Toolchain:
    """Return the toolchain of the chosen set, with CUTLASS, CuPy's headers and the shims.

    The search path has CUDA first, then CUTLASS, CuPy and other packages, and rtcompile's shims
    last, so a shim never hides a real header. Before all of them comes a folder that forwards
    ``<cccl/X>``, as CUTLASS 4 spells it for CUDA 13, to ``<X>``: the runtime headers' folder may
    hold another folder ``cccl`` than the chosen one.
    """
    draft = _Draft()
    draft.problems.extend(useless_variables(where, roots))
    nvrtc = nvjitlink = None
    cudadevrt = None
    if chosen is None:
        why = f"NVRTC not found; looked in {looked_in(where)}. {INSTALL_ANYTHING}"
        draft.lacks("nvrtc", why, problem=True)
    else:
        nvrtc, nvjitlink, cudadevrt = _libraries(draft, chosen)
        draft.search.append(SearchDir("forward", os.path.join(shims, "cccl")))
        _headers(draft, chosen, where, shims)
    last = _cutlass(draft, where, chosen, shims)
    _cupy(draft, where)
    _providers(draft, where)
    draft.search.append(SearchDir("rtcompile", shims))
    draft.search.append(SearchDir("shims", os.path.join(shims, "std")))
    draft.search += last
    nvcc = _nvcc(draft, where, roots, chosen)
    host_compiler = _host_compiler(draft, where)
    if nvcc is not None:
        nvcc = nvcc._replace(build=model.of_nvcc(nvcc, host_compiler))
    return Toolchain(
        nvrtc=nvrtc,
        nvcc=nvcc,
        nvjitlink=nvjitlink,
        cudadevrt=cudadevrt,
        host_compiler=host_compiler,
        search=tuple(draft.search),
        versions=draft.versions,
        found_via=draft.found_via,
        missing=draft.missing,
        problems=tuple(dict.fromkeys(draft.problems)),
        depends=tuple(dict.fromkeys(_depends(draft, where, roots))),
        doubts=tuple(draft.doubts),
    )


# --- the set's own parts -------------------------------------------------------------------------


def _libraries(draft: _Draft, chosen: Toolset) -> tuple[Library, Library | None, str | None]:
    nvrtc = chosen.nvrtc
    builtins = catalogue.nvrtc_builtins(nvrtc.path)
    if builtins is None:
        draft.problems.append(
            f"libnvrtc-builtins is not beside {nvrtc.path}: nothing will compile. "
            f"Reinstall it: {install([PART['nvrtc']], nvrtc)}"
        )
    paths: dict[str, str] = {}
    for name in ("nvrtc", "nvjitlink", "cudadevrt"):
        hit = chosen.hits.get(name)
        if hit is None:
            draft.lacks(name, why_missing(PART[name], chosen), problem=chosen.mixes(name))
            continue
        draft.found(name, hit.version or nvrtc.version, hit.root.found_via)
        draft.depends.append(hit.path)
        paths[name] = hit.path
    nvjitlink = None
    if "nvjitlink" in paths:
        nvjitlink = Library(paths["nvjitlink"], draft.versions["nvjitlink"])
        build = model.of_nvjitlink(nvjitlink, paths.get("cudadevrt"))
        nvjitlink = nvjitlink._replace(build=build)
    return (
        Library(nvrtc.path, nvrtc.version, (builtins,) if builtins else ()),
        nvjitlink,
        paths.get("cudadevrt"),
    )


def _headers(draft: _Draft, chosen: Toolset, where: SearchContext, shims: str) -> None:
    for name in HEADER_PARTS:
        hit = _the_only_cccl(chosen) if name == "cccl" else chosen.hits.get(name)
        if hit is not None:
            own = catalogue.of_cccl(hit.directory) if name == "cccl" else hit.version
            draft.found(name, own or chosen.nvrtc.version, hit.root.found_via)
            draft.depends.append(hit.path)
            if hit.directory not in [directory.path for directory in draft.search]:
                draft.search.append(SearchDir(name, hit.directory))
            if name == "cudart" and hit.root.layout == "bundled":  # without the runtime's API
                draft.search.append(SearchDir("bundled-shims", os.path.join(shims, "bundled")))
            continue
        why = why_missing(PART[name], chosen)
        if name == "cccl" and _use_cupy_cccl(draft, where):
            if chosen.mixes(name):
                draft.problems.append(f"{why} Until then CuPy's own copy of CCCL is used.")
            continue
        draft.lacks(name, why, problem=PART[name].required or chosen.mixes(name))


def _the_only_cccl(chosen: Toolset) -> Hit | None:
    """Return the CCCL in the runtime headers' own folder, if there is one, else the set's."""
    cudart, cccl = chosen.hits.get("cudart"), chosen.hits.get("cccl")
    if cudart and cccl and cccl.directory != cudart.directory:
        path = os.path.join(cudart.directory, PART["cccl"].markers[0])
        if os.path.isfile(path):
            return Hit(PART["cccl"], cudart.directory, path, cudart.version, cudart.root)
    return cccl


def _use_cupy_cccl(draft: _Draft, where: SearchContext) -> bool:
    root = cupy_cccl(where)
    if root is None:
        return False
    draft.found("cccl", catalogue.of_cccl(os.path.join(root, "libcudacxx")), "cupy")
    draft.search += [
        SearchDir("cccl", os.path.join(root, "libcudacxx")),
        SearchDir("cccl-cub", os.path.join(root, "cub")),
        SearchDir("cccl-thrust", os.path.join(root, "thrust")),
    ]
    return True


# --- libraries that build on CUDA ----------------------------------------------------------------


def _cutlass(
    draft: _Draft, where: SearchContext, chosen: Toolset | None, shims: str
) -> list[SearchDir]:
    """Add CUTLASS, behind the shims that it needs; return what is to be searched last of all."""
    cuda = chosen.nvrtc.version if chosen else ""
    result = libraries.find(where, cuda, draft.versions.get("cccl", ""))
    draft.problems += result.problems
    if result.found is None:
        draft.lacks("cutlass", result.missing, problem=False)
        return []
    draft.found("cutlass", result.found.version, result.why)
    if result.shims:
        draft.search.append(SearchDir("cutlass-shims", os.path.join(shims, "cutlass")))
    draft.depends.append(os.path.join(result.found.directory, libraries.MARKER))
    folder = [SearchDir("cutlass", result.found.directory)]
    if result.found.last:
        return folder
    draft.search += folder
    return []


def _cupy(draft: _Draft, where: SearchContext) -> None:
    for site_dir in where.site_dirs:
        directory = os.path.join(site_dir, "cupy/_core/include")
        marker = os.path.join(directory, "cupy/carray.cuh")
        if os.path.isfile(marker):
            draft.search.append(SearchDir("cupy", directory))
            draft.found_via["cupy"] = "site-packages"
            draft.depends.append(marker)
            return
    draft.lacks(
        "cupy",
        "CuPy's headers (cupy/) not found; looked in site-packages. `pip install cupy-cuda12x` "
        "or cupy-cuda13x.",
        problem=False,
    )


def _providers(draft: _Draft, where: SearchContext) -> None:
    for one in provided(where.site_dirs):
        if not one.directory:
            draft.problems.append(
                f"{one.package} {one.version} says that its headers are in {one.said}, which is "
                f"not there: ignored. Reinstall {one.package}."
            )
            continue
        draft.search.append(one.search_dir)
        draft.found(one.search_dir.label, one.version, one.package)
        draft.depends.append(one.directory)


@dataclass(frozen=True, slots=True)
class Provided:
    """A folder of headers that a package provides."""

    name: str  # the entry's name
    package: str  # the distribution that declares it
    version: str
    directory: str  # "" if the declared one does not exist
    said: str  # the declared folder, as the entry spells it

    @property
    def search_dir(self) -> SearchDir:
        """The folder as an entry of the search path."""
        return SearchDir(f"{PROVIDED}{self.name}", self.directory)


def provided(site_dirs: Sequence[str]) -> Iterator[Provided]:
    """Yield the declared folders of packages in these directories, the first of each name."""
    found: dict[str, Provided] = {}
    for distribution in metadata.distributions(path=list(site_dirs)):
        # Most packages declare none, which a plain search of the text shows without parsing it.
        if GROUP not in (distribution.read_text("entry_points.txt") or ""):
            continue
        for entry in distribution.entry_points:
            if entry.group == GROUP:
                directory = _directory(distribution, entry.value)
                package = distribution.metadata["Name"]
                provision = Provided(
                    entry.name, package, distribution.version, directory, entry.value
                )
                found.setdefault(entry.name, provision)
    yield from (found[name] for name in sorted(found))


def _directory(distribution: metadata.Distribution, dotted: str) -> str:
    parts = dotted.split(".")
    candidates = [str(distribution.locate_file(os.path.join(*parts)))]
    try:
        spec = importlib.util.find_spec(
            parts[0]
        )  # for an editable install; this does not import it
    except (ImportError, ValueError):
        spec = None
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        candidates.append(os.path.join(location, *parts[1:]))
    return next((os.path.abspath(path) for path in candidates if os.path.isdir(path)), "")


# --- nvcc ----------------------------------------------------------------------------------------


def _nvcc(
    draft: _Draft, where: SearchContext, roots: Sequence[Root], chosen: Toolset | None
) -> Program | None:
    """Return the nvcc of NVRTC's version, else the first that works, as it has its own headers."""
    best: tuple[Program, str] | None = None
    nvrtc = chosen.nvrtc if chosen else None
    for path, version, root in _nvcc_candidates(where, roots):
        program = describe_nvcc(path, version, where.environ)
        if program is None:
            draft.doubts.append(path)
            draft.problems.append(f"{path} does not run: `{path} --version` printed no version.")
            continue
        trouble = _out_of_step(program, root, nvrtc)
        if trouble:
            draft.problems.append(trouble)
            continue
        found_via = root.found_via if root else "PATH"
        best = best or (program, found_via)
        if nvrtc and program.version_pair == version_pair(nvrtc.version):
            best = program, found_via
            break
    if best is None:
        looked = f"nvcc not found; looked in {looked_in(where)}, PATH."
        draft.lacks("nvcc", f"{looked} {install_nvcc(nvrtc)}", problem=False)
        return None
    program, found_via = best
    draft.found("nvcc", program.version, found_via)
    draft.depends += model.files_of_nvcc(program)
    if nvrtc and program.version_pair[0] != version_pair(nvrtc.version)[0]:
        draft.problems.append(
            f"nvcc {program.version} ({program.path}) is of another CUDA than NVRTC "
            f"{nvrtc.version}: what NVRTC cannot compile is built by it, with its own headers, and "
            f"runs only on a driver of CUDA {program.version_pair[0]}. {install_nvcc(nvrtc)}"
        )
    return program


def _nvcc_candidates(
    where: SearchContext, roots: Sequence[Root]
) -> Iterator[tuple[str, str, Root | None]]:
    system = [root for root in roots if root.found_via == "system"]
    for root in [root for root in roots if root not in system]:
        yield from _nvcc_in(root)
    on_path = which("nvcc", where.environ)
    if on_path:
        yield on_path, "", None
    for root in system:
        yield from _nvcc_in(root)


def _nvcc_in(root: Root) -> Iterator[tuple[str, str, Root]]:
    hit = root.look(PART["nvcc"])
    if hit is not None and os.access(hit.path, os.X_OK):
        yield hit.path, hit.version, root


def _out_of_step(nvcc: Program, root: Root | None, nvrtc: Hit | None) -> str:
    """Return what is wrong with the toolkit around an nvcc, whose parts pip can install in other versions."""
    if root is None:
        return ""
    own = Hit(PART["nvcc"], os.path.dirname(nvcc.path), nvcc.path, nvcc.version, root)
    # In a folder shared with NVRTC, the other parts are to get NVRTC's version, not NVRTC nvcc's.
    fix = install_nvcc(nvrtc if nvrtc and nvrtc.root == root else own)
    for name in ("nvvm", "crt", "cudart"):
        part = PART[name]
        hit = root.look(part)
        if hit is None and root.layout == "wheels13":
            package = part.package("wheels13")
            return f"nvcc {nvcc.version} ({nvcc.path}) lacks {package}: not used. {fix}"
        culprit = hit and unfit(hit, own)
        if culprit:
            package = culprit.part.package(root.layout) or culprit.part.what
            return (
                f"nvcc {nvcc.version} ({nvcc.path}) and {package} {culprit.version} "
                f"({culprit.path}) are of different versions: nvcc is not used. {fix}"
            )
    return ""


def _host_compiler(draft: _Draft, where: SearchContext) -> str | None:
    named = [where.environ[name] for name in given(HOST_COMPILER_ENVIRONMENT, where)]
    for candidate in (*named, "g++", "c++"):
        # nvcc's -ccbin may name a folder instead of a program.
        found = candidate if os.path.isdir(candidate) else which(candidate, where.environ)
        if found:
            draft.depends.append(found)
            return found
    draft.lacks(
        "host_compiler",
        "no C++ compiler for nvcc; looked for "
        + ", ".join((*named, "g++", "c++"))
        + " on PATH. Install g++ (`apt install g++`, `conda install gxx`) or set NVCC_CCBIN.",
        problem=False,
    )
    return None


# --- what the result depends on
# --------------------------------------------------------------------


def _depends(draft: _Draft, where: SearchContext, roots: Sequence[Root]) -> Iterator[str]:
    """Yield the paths whose change can change this result: files found, and folders searched."""
    yield from draft.depends
    yield from where.site_dirs
    for root in roots:
        if root.layout == "conda":
            yield os.path.join(root.path, "conda-meta")
        elif root.layout == "toolkit":
            yield root.path
            for name in ("version.json", "include", "lib64", "lib", "bin"):
                yield os.path.join(root.path, name)
    for pattern in where.usual_roots:
        yield os.path.dirname(pattern)
    for name in given(CUTLASS_ENVIRONMENT, where):
        yield os.path.abspath(where.environ[name])
    if "nvcc" in draft.missing or "host_compiler" in draft.missing:
        yield from where.environ.get("PATH", "").split(os.pathsep)
