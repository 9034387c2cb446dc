"""Describes a bundle: the GPUs that it serves, its provenance, and whether a rebuild gives equal bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from rtcompile.build import from_bundle
from rtcompile.build.to_bundle import Work
from rtcompile.bundles import index as bundles
from rtcompile.bundles.file import Bundle, Row, listed_headers
from rtcompile.errors import InvalidRequest
from rtcompile.files.headers import Header
from rtcompile.files.sealed import content_digest
from rtcompile.request import arch as archs
from rtcompile.request import object_code
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.values import Arch
from rtcompile.workers import pool

Version = tuple[int, int]

# The first Linux driver branch of each CUDA release, from the release notes of the CUDA toolkit.
_BRANCHES: dict[Version, int] = {
    (12, 0): 525,
    (12, 1): 530,
    (12, 2): 535,
    (12, 3): 545,
    (12, 4): 550,
    (12, 5): 555,
    (12, 6): 560,
    (12, 8): 570,
    (12, 9): 575,
    (13, 0): 580,
}


class Served(NamedTuple):
    """The code that one generation of GPUs gets from a bundle if nothing can be compiled."""

    gpu: str  # its compute capability, "9.0"
    program: str  # the source, with its name expressions where it has some
    cuda: int  # the major version that the code was made with, and CuPy must have; 0 for nothing
    code: str  # "cubin sm_90a", "ptx compute_80" or "nothing"
    driver: str  # the least driver, as the CUDA release that it came with; "" for nothing


def matrix(bundle: Bundle) -> list[Served]:
    """Return what each generation from 7.5 on gets, for each program and major version of CUDA."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in bundle.rows():
        groups.setdefault((row.key, row.cuda), []).append(row)
    served = []
    for capability in archs.generations():
        for (_, cuda), rows in groups.items():
            name = rows[0].program
            name += f" ({', '.join(rows[0].names)})" if rows[0].names else ""
            gpu = f"{capability[0]}.{capability[1]}"
            usable = from_bundle.usable(rows, capability)
            if not usable:
                served.append(Served(gpu, name, cuda, "nothing", ""))
                continue
            best = usable[0]
            arch = best.arch if best.kind == "cubin" else best.arch.virtual
            least = _least_driver(best, capability)
            served.append(Served(gpu, name, cuda, f"{best.kind} {arch}", _driver(least)))
    return served


def _least_driver(row: Row, capability: Version) -> Version:
    """Return the CUDA release whose driver is the oldest that runs a build on a device."""
    # Machine code runs on every driver for its major version of CUDA; PTX needs one as new as its compiler.
    words = row.compiler.split()
    release = tuple(int(part) for part in words[1].split(".")[:2]) if len(words) > 1 else (0, 0)
    made_by = (release[0], release[1] if row.kind == "ptx" else 0)
    return max(made_by, archs.first_release(capability))


def _driver(release: Version) -> str:
    name = f"CUDA {release[0]}.{release[1]}"
    branch = _BRANCHES.get(release)
    return f"{name} (R{branch})" if branch else name


def _contents(bundle: Bundle) -> list[tuple[Row, ObjectCode, tuple[Header, ...]]]:
    found = []
    for row, data, checks, _ in bundle.contents():
        decoded = object_code.decode(row.sealed_key(), data)
        if decoded is None:
            raise InvalidRequest(f"{bundle.path}: the build of {row.program} does not verify")
        found.append((row, decoded[1], listed_headers(row, checks)))
    if bundle.problem:
        raise InvalidRequest(f"{bundle.path}: {bundle.problem}")
    return found


def provenance(bundle: Bundle) -> list[dict[str, Any]]:
    """Return the compiler, options and inputs of each build of a bundle, as plain values."""
    return [
        {
            "program": row.program,
            "arch": str(row.arch),
            "kind": row.kind,
            "bytes": len(code.code),
            "digest": content_digest(code.code),
            "backend": row.backend,
            "compiler": row.compiler,
            "options": list(row.options),
            "name expressions": dict(code.lowered_names),
            "source digest": row.source,
            "headers": [
                {"from": h.label, "name": h.relative, "bytes": h.size, "digest": h.digest}
                for h in headers
            ],
            "digests": "BLAKE2b, 32 bytes",
        }
        for row, code, headers in _contents(bundle)
    ]


class Rebuilt(NamedTuple):
    """A build of a bundle that was compiled again: `outcome` is ``"same"``, or what differs."""

    program: str
    arch: str
    kind: str
    outcome: str


def architectures(bundle: Bundle) -> list[str]:
    """Return the names of the architectures that a bundle has code for."""
    rows = bundle.rows()
    names = (row.arch.virtual if row.kind == "ptx" else str(row.arch) for row in rows)
    return list(dict.fromkeys(names))


def rebuild(bundle: Bundle, works: Iterable[Work]) -> list[Rebuilt]:
    """Compile every build of a bundle again, past all caches, and compare the code byte by byte."""
    work: dict[tuple[str, Arch | None, str], Work] = {}
    for each in works:
        inputs = from_bundle.key_inputs(each.request, each.settings())
        if inputs is not None:
            work[inputs.bundle_key(), each.request.arch, each.request.target] = each

    def again(build: tuple[Row, ObjectCode, tuple[Header, ...]]) -> Rebuilt:
        row, code, headers = build
        # A request whose options fix the architecture has arch=None.
        found = work.get((row.key, row.arch, row.kind)) or work.get((row.key, None, row.kind))
        made = None if found is None else found.build(recompile=True)
        return Rebuilt(row.program, str(row.arch), row.kind, _outcome(row, code, headers, made))

    with bundles.out_of_use(), ThreadPoolExecutor(pool.slots()) as executor:
        return [*executor.map(again, _contents(bundle))]


def _outcome(
    row: Row, bundled_code: ObjectCode, headers: Sequence[Header], again: ObjectCode | None
) -> str:
    if again is None:
        return "not among the targets: another source, other options, or not named"
    same = again.code == bundled_code.code
    if same and dict(again.lowered_names) == dict(bundled_code.lowered_names):
        return "same"
    if again.build.compiler != row.compiler:
        return f"differs: made by {row.compiler}, here is {again.build.compiler}"
    then = {(header.label, header.relative): header.digest for header in headers}
    now = {(header.label, header.relative): header.digest for header in again.build.headers}
    others = sorted({relative for label, relative in dict(then.items() ^ now.items())})
    if others:
        return f"differs: made with another {', '.join(others[:3])}{' …' * (len(others) > 3)}"
    pairs = enumerate(zip(again.code, bundled_code.code, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), None)
    where = f"from byte {at} on" if at is not None else "in its length or its names"
    return f"differs {where}, by the same compiler"
