"""Finds one consistent toolkit: it evaluates each root as a whole, and never mixes versions.

The first root with a complete set wins; optional parts that it lacks come from later roots of the same major.minor.
If no root is complete, the one that lacks the fewest parts wins, and `Toolchain.problems` lists what to install.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcompile.files.headers import SearchDir
from rtcompile.lookup.environment import on_path
from rtcompile.request.values import absolute
from rtcompile.settings import cuda_of_cupy
from rtcompile.toolkit import catalogue, model
from rtcompile.toolkit.catalogue import Part
from rtcompile.toolkit.model import Executable, Library, Toolchain, describe_nvcc, version_pair
from rtcompile.toolkit.roots import (
    CUTLASS_MARKER,
    INSTALL_CUTLASS,
    Hit,
    Root,
    SearchContext,
    Toolset,
    choose,
    conda_prefixes,
    culprit_of,
    cupy_cccl,
    find_cutlass,
    given,
    pair_cutlass,
    usual,
)


def find(
    environ: Mapping[str, str],
    site_dirs: Sequence[str],
    *,
    usual_roots: Sequence[str] = catalogue.USUAL_ROOTS,
    machine: str | None = None,
    prefix: str = "",
    unpack: Callable[[Hit], str | None] = lambda _: None,
) -> Toolchain:
    """Search for a toolkit; the arguments are all inputs, None means this machine's."""
    where = SearchContext(
        environ,
        tuple(site_dirs),
        tuple(usual_roots),
        catalogue.TARGETS.get(machine or platform.machine(), ()),
        prefix,
    )
    major = cuda_of_cupy(where.site_dirs)
    spare = ("cccl",) if cupy_cccl(where) else ()
    by_folder: dict[tuple[str, str], Root] = {}  # of several roots that are one folder, the first
    for root in usual(where):
        by_folder.setdefault((os.path.realpath(root.path), root.layout), root)
    roots = [*by_folder.values()]
    chosen = choose(roots, major, spare)
    if chosen is not None and chosen.lacking():
        folder = unpack(chosen.nvrtc)
        if folder is not None:
            versions = {"nvrtc": chosen.nvrtc.version}
            roots.append(Root(folder, "bundled", "NVRTC", where.targets, versions))
            chosen = choose(roots, major, spare)
    problems = [*_useless_variables(where, roots)]
    return _Assembly(where, roots, chosen, problems).toolchain()


def _shims() -> str:
    """Return the path of ``include_shims``, which is inside the installed package, or next to it in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "include_shims")
    if os.path.isdir(installed):
        return installed
    return os.path.join(os.path.dirname(package), "include_shims")


# --- the toolchain of a set -----------------------------------------------------------------------


@dataclass
class _Assembly:
    """Builds the `Toolchain` of the chosen set, recording how each part was found."""

    where: SearchContext
    roots: Sequence[Root]
    chosen: Toolset | None
    problems: list[str]
    shims: str = field(default_factory=_shims)
    search: list[SearchDir] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    found_via: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    depends: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def found(self, name: str, version: str, found_via: str, *depends: str) -> None:
        self.versions[name] = version
        self.found_via[name] = found_via
        self.depends += depends

    def lacks(self, name: str, why: str, *, problem: bool = False) -> None:
        self.missing[name] = why
        if problem:
            self.problems.append(why)

    def searches(self, label: str, *path: str) -> None:
        self.search.append(SearchDir(label, os.path.join(*path)))

    def libraries(self, chosen: Toolset) -> dict[str, Any]:
        """Return NVRTC, nvJitLink and the device runtime."""
        nvrtc = chosen.nvrtc
        builtins = catalogue.nvrtc_builtins(nvrtc.path)
        if builtins is None:
            self.problems.append(
                f"libnvrtc-builtins is not beside {nvrtc.path}: nothing will compile. "
                f"Reinstall it: {_install([catalogue.PART['nvrtc']], nvrtc)}"
            )
        paths: dict[str, str] = {}
        for name in ("nvrtc", "nvjitlink", "cudadevrt"):
            hit = chosen.hits.get(name)
            if hit is None:
                why = _why_missing(catalogue.PART[name], chosen)
                self.lacks(name, why, problem=chosen.mixes(name))
                continue
            self.found(name, hit.version or nvrtc.version, hit.root.found_via, hit.path)
            paths[name] = hit.path
        runtime, nvjitlink = paths.get("cudadevrt"), None
        if "nvjitlink" in paths:
            nvjitlink = Library(paths["nvjitlink"], self.versions["nvjitlink"])
            nvjitlink = nvjitlink._replace(build=model.of_nvjitlink(nvjitlink, runtime))
        library = Library(nvrtc.path, nvrtc.version, (builtins,) if builtins else ())
        library = library._replace(build=model.of_nvrtc(library))
        return {"nvrtc": library, "nvjitlink": nvjitlink, "cudadevrt": runtime}

    def headers(self, chosen: Toolset) -> None:
        """Add the folders of the set's headers."""
        for name in catalogue.HEADER_PARTS:
            hit = _cccl_found_first(chosen) if name == "cccl" else chosen.hits.get(name)
            if hit is not None:
                own = catalogue.of_cccl(hit.directory) if name == "cccl" else hit.version
                self.found(name, own or chosen.nvrtc.version, hit.root.found_via, hit.path)
                if hit.directory not in [directory.path for directory in self.search]:
                    self.searches(name, hit.directory)
                if name == "cudart" and hit.root.layout == "bundled":  # without the runtime's API
                    self.searches("bundled-shims", self.shims, "bundled")
                continue
            why = _why_missing(catalogue.PART[name], chosen)
            cupys = cupy_cccl(self.where) if name == "cccl" else None
            if cupys is None:
                self.lacks(name, why, problem=catalogue.PART[name].required or chosen.mixes(name))
                continue
            if chosen.mixes(name):
                self.problems.append(f"{why} Until then CuPy's own copy of CCCL is used.")
            self.found("cccl", catalogue.of_cccl(os.path.join(cupys, "libcudacxx")), "cupy")
            self.searches("cccl", cupys, "libcudacxx")
            self.searches("cccl-cub", cupys, "cub")
            self.searches("cccl-thrust", cupys, "thrust")

    def cutlass(self) -> list[SearchDir]:
        """Add CUTLASS, after the shims that it needs; return the folder to search last."""
        cuda = self.chosen.nvrtc.version if self.chosen else ""
        cccl = self.versions.get("cccl", "")
        found, why = find_cutlass(self.where, cuda, cccl, self.problems)
        if found is None:
            self.lacks("cutlass", why)
            return []
        row = pair_cutlass(found.version, cccl) if cccl else None
        if cccl and row is None:
            unset = f"unset {found.via} and " if found.via in catalogue.CUTLASS_ENVIRONMENT else ""
            self.problems.append(
                f"CUTLASS {found.version} ({found.directory}) does not go with CUDA {cuda} (CCCL {cccl}): "
                f"NVRTC does not compile CuTe. To get one that does, {unset}`{INSTALL_CUTLASS}`."
            )
        marker = os.path.join(found.directory, CUTLASS_MARKER)
        self.found("cutlass", found.version, why, marker)
        if row is not None and row.shims:
            self.searches("cutlass-shims", self.shims, "cutlass")
        if found.last:
            return [SearchDir("cutlass", found.directory)]
        self.searches("cutlass", found.directory)
        return []

    def cupy(self) -> None:
        """Add CuPy's headers."""
        for site_dir in self.where.site_dirs:
            directory = os.path.join(site_dir, "cupy/_core/include")
            marker = os.path.join(directory, "cupy/carray.cuh")
            if os.path.isfile(marker):
                self.searches("cupy", directory)
                self.found_via["cupy"] = "site-packages"
                self.depends.append(marker)
                return
        why = "CuPy's headers (cupy/) not found; looked in site-packages."
        self.lacks("cupy", f"{why} `pip install cupy-cuda12x` or cupy-cuda13x.")

    def nvcc(self) -> Executable | None:
        """Return the nvcc of NVRTC's version, else the first that works, since nvcc has its own headers."""
        best: tuple[Executable, str] | None = None
        nvrtc = self.chosen.nvrtc if self.chosen else None
        # The roots' nvcc come before the one on PATH, the system's after it.
        found: list[tuple[str, str, Root | None]] = [
            (hit.path, hit.version, root)
            for root in self.roots
            if (hit := root.look(catalogue.PART["nvcc"])) is not None
            and os.access(hit.path, os.X_OK)
        ]
        if path := on_path("nvcc", self.where.environ.get("PATH", "")):
            found.append((path, "", None))
        found.sort(key=lambda each: 2 * (each[2].found_via == "system") if each[2] else 1)
        for path, version, root in found:
            program = describe_nvcc(path, version, self.where.environ)
            if program is None:
                self.doubts.append(path)
                self.problems.append(f"{path} does not run: `{path} --version` printed no version.")
                continue
            trouble = _out_of_step(program, root, nvrtc)
            if trouble:
                self.problems.append(trouble)
                continue
            found_via = root.found_via if root else "PATH"
            best = best or (program, found_via)
            if nvrtc and program.version_pair == version_pair(nvrtc.version):
                best = program, found_via
                break
        if best is None:
            looked = f"nvcc not found; looked in {_looked_in(self.where)}, PATH."
            self.lacks("nvcc", f"{looked} {_install_nvcc(nvrtc)}")
            return None
        program, found_via = best
        self.found("nvcc", program.version, found_via, *model.files_of_nvcc(program))
        if nvrtc and program.version_pair[0] != version_pair(nvrtc.version)[0]:
            self.problems.append(
                f"nvcc {program.version} ({program.path}) is of another CUDA than NVRTC "
                f"{nvrtc.version}: what NVRTC cannot compile is built by it, with its own headers, "
                f"and runs only on a driver of CUDA {program.version_pair[0]}. {_install_nvcc(nvrtc)}"
            )
        return program

    def host_compiler(self) -> str | None:
        """Return the C++ compiler for nvcc: a program, or a folder for -ccbin."""
        environ = self.where.environ
        named = [environ[name] for name in given(catalogue.HOST_COMPILER_ENVIRONMENT, self.where)]
        for name in (*named, "g++", "c++"):
            found = name if os.path.isdir(name) else on_path(name, environ.get("PATH", ""))
            if found:
                self.depends.append(found)
                return found
        why = f"no C++ compiler for nvcc; looked for {', '.join((*named, 'g++', 'c++'))} on PATH."
        step = "Install g++ (`apt install g++`, `conda install gxx`) or set NVCC_CCBIN."
        self.lacks("host_compiler", f"{why} {step}")
        return None

    def all_depends(self) -> Iterator[str]:
        """Yield the paths on which this result depends: found files and searched folders."""
        where = self.where
        yield from self.depends
        yield from where.site_dirs
        for root in self.roots:
            if root.layout == "conda":
                yield os.path.join(root.path, "conda-meta")
            elif root.layout == "toolkit":
                for name in ("", "version.json", "include", "lib64", "lib", "bin"):
                    yield os.path.join(root.path, name).rstrip("/")
        for pattern in where.usual_roots:
            yield os.path.dirname(pattern)
        for name in given(catalogue.CUTLASS_ENVIRONMENT, where):
            yield absolute(where.environ[name])

    def toolchain(self) -> Toolchain:
        """Return the toolchain of the chosen set, with CUTLASS, CuPy's headers and the shims."""
        # The search path has CUDA first, then CUTLASS and CuPy, and rtcompile's shims last, so a
        # shim never hides a real header. Before all of them comes a folder that forwards `<cccl/X>` (CUTLASS 4's
        # spelling for CUDA 13) to `<X>`, since the runtime headers' folder may contain another `cccl` folder than
        # the chosen one.
        libraries = {}
        if self.chosen is None:
            looked = _looked_in(self.where)
            why = f"NVRTC not found; looked in {looked}. {_INSTALL_ANYTHING}"
            self.lacks("nvrtc", why, problem=True)
        else:
            libraries = self.libraries(self.chosen)
            self.searches("forward", self.shims, "cccl")
            self.headers(self.chosen)
        last = self.cutlass()
        self.cupy()
        self.searches("rtcompile", self.shims)
        self.searches("shims", self.shims, "std")
        nvcc, host_compiler = self.nvcc(), self.host_compiler()
        return Toolchain(
            **libraries,
            nvcc=nvcc and nvcc._replace(build=model.of_nvcc(nvcc, host_compiler)),
            host_compiler=host_compiler,
            search=(*self.search, *last),
            versions=self.versions,
            found_via=self.found_via,
            missing=self.missing,
            problems=tuple(dict.fromkeys(self.problems)),
            depends=tuple(dict.fromkeys(self.all_depends())),
            doubts=tuple(self.doubts),
        )


def _cccl_found_first(chosen: Toolset) -> Hit | None:
    """Return the CCCL in the runtime headers' own folder, if there is one, else the set's."""
    cudart, cccl = chosen.hits.get("cudart"), chosen.hits.get("cccl")
    if cudart and cccl and cccl.directory != cudart.directory:
        path = os.path.join(cudart.directory, catalogue.PART["cccl"].markers[0])
        if os.path.isfile(path):
            return Hit(catalogue.PART["cccl"], cudart.directory, path, cudart.version, cudart.root)
    return cccl


def _out_of_step(nvcc: Executable, root: Root | None, nvrtc: Hit | None) -> str:
    """Return the problem of an nvcc whose toolkit mixes versions, which pip can install; "" if there is none."""
    if root is None:
        return ""
    own = Hit(catalogue.PART["nvcc"], os.path.dirname(nvcc.path), nvcc.path, nvcc.version, root)
    # In a folder shared with NVRTC, the other parts must get NVRTC's version; NVRTC must not get nvcc's.
    fix = _install_nvcc(nvrtc if nvrtc and nvrtc.root == root else own)
    for name in ("nvvm", "crt", "cudart"):
        part = catalogue.PART[name]
        hit = root.look(part)
        if hit is None and root.layout == "wheels13":
            package = part.package("wheels13")
            return f"nvcc {nvcc.version} ({nvcc.path}) lacks {package}: not used. {fix}"
        culprit = hit and culprit_of(hit, own)
        if culprit:
            package = culprit.part.package(root.layout) or culprit.part.what
            return (
                f"nvcc {nvcc.version} ({nvcc.path}) and {package} {culprit.version} "
                f"({culprit.path}) are of different versions: nvcc is not used. {fix}"
            )
    return ""


# --- Sentences about missing parts: fact, evidence, next step -------------------------------------

_INSTALL_ANYTHING = (
    '`pip install "rtcompile[cuda12]"` or `"rtcompile[cuda13]"`, or set CUDA_PATH to a toolkit.'
)


def _looked_in(where: SearchContext) -> str:
    """Return the folders that were searched, for "looked in …"."""
    named = [f"{name}={where.environ[name]}" for name in given(catalogue.CUDA_ENVIRONMENT, where)]
    named[:0] = [f"conda's {prefix}" for prefix in conda_prefixes(where)]
    return ", ".join(["site-packages/nvidia", *named, *where.usual_roots])


def _useless_variables(where: SearchContext, roots: Sequence[Root]) -> Iterator[str]:
    """Yield a sentence for each variable that names no toolkit."""
    for name in given(catalogue.CUDA_ENVIRONMENT, where):
        path = absolute(where.environ[name])
        root = next((root for root in roots if root.path == path), None)
        if root and not any(root.look(part) for part in catalogue.PARTS):
            state = "contains no CUDA toolkit" if os.path.isdir(path) else "is not there"
            yield f"{name}={where.environ[name]} {state}: ignored. Correct it or unset it."


def _why_missing(part: Part, chosen: Toolset) -> str:
    """Return why the set lacks `part`, and the command that completes the set."""
    nvrtc = chosen.nvrtc
    here = f"NVRTC {nvrtc.version} ({nvrtc.path})"
    if part.name in chosen.rejected:
        hit, culprit = chosen.rejected[part.name]
        version = f"version {culprit.version or 'unknown'} ({culprit.path}) does not go with {here}"
        replaces = " This replaces the other version." if chosen.mixes(part.name) else ""
        if culprit.part == part:
            fact = f"{part.what}: {version} and is not used."
        else:
            fact = (
                f"{part.what}: {hit.directory} is not searched, because it also contains "
                f"{culprit.part.what}, whose {version}."
            )
        return f"{fact} {_complete(part, chosen)}{replaces}"
    package = part.package(nvrtc.root.layout)
    installed = nvrtc.root.installed.get(package)
    if installed:  # nvidia-cuda-runtime-cu12 12.8 has no libcudadevrt.a, 12.9 has
        return (
            f"{part.what} not found for {here}: {package} {installed} is installed without it. "
            f"{_install_toolkit(nvrtc)}"
        )
    return f"{part.what} not found for {here}. {_complete(part, chosen)}"


def _complete(part: Part, chosen: Toolset) -> str:
    """Return the command that installs `part`, together with all other missing required parts."""
    lacking = chosen.lacking() if part.required else []
    wanted = [part, *(other for other in catalogue.PARTS if other.name in lacking)]
    # Replace the part that makes a folder unfit, not the others in that folder.
    culprits = {
        chosen.rejected[p.name][1].part.name if p.name in chosen.rejected else p.name
        for p in wanted
    }
    return _install([p for p in catalogue.PARTS if p.name in culprits], chosen.nvrtc)


def _install(parts: Sequence[Part], nvrtc: Hit) -> str:
    """Return the command that installs `parts` at NVRTC's version, by NVRTC's package manager."""
    release = version_pair(nvrtc.version)
    layout = f"wheels{release[0]}" if nvrtc.root.layout == "toolkit" else nvrtc.root.layout
    none = f"No wheel of CUDA {release[0]} has it. {_install_toolkit(nvrtc)}"
    return catalogue.command(parts, layout, release) or none


def _install_nvcc(compiler: Hit | None) -> str:
    """Return how to install an nvcc of a compiler's version, or of any version without a compiler."""
    if compiler is None:
        return (
            '`pip install "rtcompile[cuda13]"` installs it. For CUDA 12 no wheel has it: install a CUDA '
            "toolkit, NVIDIA's or by `conda install cuda-toolkit`, and set CUDA_PATH to it."
        )
    major = version_pair(compiler.version)[0]
    by_pip = compiler.root.layout != "conda" and major == 13
    names = ("nvcc", "nvvm", "crt", "cudart") if by_pip else ("nvcc",)
    return _install([part for part in catalogue.PARTS if part.name in names], compiler)


def _install_toolkit(nvrtc: Hit) -> str:
    """Return advice for a part that no wheel of NVRTC's version has."""
    major, minor = version_pair(nvrtc.version)
    return (
        f"Install the CUDA toolkit {major}.{minor}, NVIDIA's or by `conda install cuda-toolkit "
        f"cuda-version={major}.{minor}`, and set CUDA_PATH to it."
    )
