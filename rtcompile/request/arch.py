"""Chooses the architecture to compile for, given the capability from `lookup.find.compute_capability`. Pure."""

from __future__ import annotations

from functools import lru_cache

from rtcompile.errors import UnsupportedArch
from rtcompile.named import NamedTuple
from rtcompile.request.values import Arch

Version = tuple[int, int]
Capability = tuple[int, int]


class Choice(NamedTuple):
    """What to compile for, and why in one clause. `target` is ``"cubin"`` or ``"ptx"``."""

    arch: Arch
    target: str
    why: str


# (architectures, first NVRTC, last NVRTC or None): what each release compiles for. Measured by
# compiling for every number and suffix with 12.0, 12.4, 12.6, 12.8, 12.9 and 13.0 to 13.5.
_KNOWN: tuple[tuple[str, Version, Version | None], ...] = (
    ("50 52 53 60 61 62 70 72", (12, 0), (12, 9)),
    ("75 80 86 87 89 90 90a", (12, 0), None),
    ("100 100a 120 120a", (12, 8), None),
    ("101 101a", (12, 8), (12, 9)),
    ("101f", (12, 9), (12, 9)),
    ("100f 103 103a 103f 120f 121 121a 121f", (12, 9), None),
    ("88 110 110a 110f", (13, 0), None),
    ("107 107a 107f", (13, 4), None),
)
NEWEST_MEASURED: Version = (13, 5)

# Architectures reported by releases newer than the measured ones: see `learn`.
learned: dict[Version, tuple[int, ...]] = {}

# CUDA 13 renamed these: older drivers report the first capability, newer ones the second.
_RENAMED: dict[Capability, Capability] = {(10, 1): (11, 0)}

# NVIDIA promises no binary compatibility to or from integrated GPUs (Jetson, Drive). 8.8 is on no public list of
# products, so it is treated in the same way. Older ones need no entry: each NVRTC knows them or has dropped them.
_INTEGRATED: frozenset[Capability] = frozenset({(8, 8), (10, 1), (11, 0)})


@lru_cache
def supported(nvrtc: Version) -> tuple[Arch, ...]:
    """Return the architectures of this NVRTC in ascending order: as measured, or, for a newer one, as it reports."""
    if nvrtc in learned:
        return tuple(sorted(arch for number in learned[nvrtc] for arch in variants(number)))
    known = [
        Arch.parse(name)
        for names, first, last in _KNOWN
        if first <= nvrtc and (last is None or nvrtc <= last)
        for name in names.split()
    ]
    return tuple(sorted(known, key=lambda arch: (arch.major, arch.minor, arch.suffix)))


def learn(nvrtc: Version, numbers: tuple[int, ...]) -> None:
    """Record the architectures that a release newer than the measured ones reports, as ``(75, …, 121)``."""
    if learned.get(nvrtc) != numbers:
        learned[nvrtc] = numbers
        supported.cache_clear()
        choose.cache_clear()
        check.cache_clear()


def variants(number: int) -> list[Arch]:
    """Return an architecture with the suffixes that all architectures of its generation have had."""
    major, minor = divmod(number, 10)
    suffixes = ["", *["a"] * (major >= 9), *["f"] * (major >= 10)]
    return [Arch(major, minor, suffix) for suffix in suffixes]


@lru_cache
def choose(capability: Capability, nvrtc: Version, *, virtual: bool = False) -> Choice:
    """Choose what to compile for, given a device and a compiler; `virtual` selects PTX."""
    # The device's own architecture is chosen, with the suffix ``a`` if there is one: wgmma, setmaxnreg and tcgen05
    # need it. If NVRTC is older than the device, the nearest architecture of its generation is chosen if the device
    # runs its machine code, which needs no driver JIT at each load; otherwise PTX.
    known = supported(nvrtc)
    kind = "ptx" if virtual else "cubin"
    plain = Arch(*capability)
    if plain in known:
        specific = Arch(*capability, "a")
        return Choice(specific if specific in known else plain, kind, "the device's own")
    older = [arch for arch in known if not arch.suffix and arch < plain]
    releases = {release for _, *ends in _KNOWN for release in ends if release is not None}
    if not older or any(plain in supported(earlier) for earlier in releases if earlier < nvrtc):
        raise UnsupportedArch(_dropped(capability, nvrtc))
    unknown = f"NVRTC {_dotted(nvrtc)} does not know it"
    generation = [arch for arch in older if arch.major == capability[0]]
    kin = [arch for arch in generation if not _INTEGRATED & {(arch.major, arch.minor), capability}]
    if not kin:
        return Choice(max(older), "ptx", f"{unknown}; the driver compiles PTX for it")
    nearest = max(kin)
    family = nearest.replace(suffix="f")
    why = f"{unknown}; the nearest of its generation"
    return Choice(family if family in known else nearest, kind, why)


@lru_cache  # comparing an architecture with all others takes as long as a dozen keys
def check(arch: Arch, target: str, nvrtc: Version) -> None:
    """Raise `UnsupportedArch`, naming the versions that know `arch`, if this NVRTC does not."""
    if arch in supported(nvrtc) or (nvrtc > NEWEST_MEASURED and nvrtc not in learned):
        return
    name = str(arch) if target == "cubin" else arch.virtual
    lead = f"NVRTC {_dotted(nvrtc)} does not compile for {name}"
    versions = _versions_knowing(arch)
    if versions:
        raise UnsupportedArch(f"{lead}; {versions} does. {_renamed_note(arch)}".rstrip())
    known = [str(other) for other in supported(nvrtc) if other.major == arch.major]
    raise UnsupportedArch(
        f"{lead}, and neither does any other release since 12.0. It knows "
        + (", ".join(known) or ", ".join(map(str, supported(nvrtc))))
    )


def runs_on(arch: Arch, target: str, capability: Capability) -> bool:
    """Return whether code of `arch` can run on a device; PTX and LTO-IR are compiled further for it."""
    own = (arch.major, arch.minor)
    if own > capability or arch.suffix == "a":
        return own == capability
    if target != "cubin" and arch.suffix != "f":
        return True
    # NVIDIA promises nothing between integrated and discrete GPUs of one generation: True, so the driver decides.
    # 10.1 is the old name of 11.0, so it is not of 10.0's generation (nvJitLink rejects 100f for it).
    return _RENAMED.get(own, own)[0] == _RENAMED.get(capability, capability)[0]


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _versions_knowing(arch: Arch) -> str:
    for names, first, last in _KNOWN:
        if str(arch)[3:] in names.split():
            if last is None:
                return f"NVRTC {_dotted(first)} or newer"
            return f"NVRTC {_dotted(first)}" + (f" to {_dotted(last)}" if last != first else "")
    return ""


def _renamed_note(arch: Arch) -> str:
    names = {**_RENAMED, **{new: old for old, new in _RENAMED.items()}}
    other = names.get((arch.major, arch.minor))
    return f"(CUDA 13 renamed 10.1 to 11.0: {Arch(*other, arch.suffix)} there.)" if other else ""


def _dropped(capability: Capability, nvrtc: Version) -> str:
    if not supported(nvrtc):
        return f"NVRTC {_dotted(nvrtc)} is too old: rtcompile needs 12.0 or newer"
    versions = _versions_knowing(Arch(*capability))
    lead = f"NVRTC {_dotted(nvrtc)} no longer compiles for compute capability {_dotted(capability)}"
    if not versions:
        return f"{lead}. Releases since 12.0 begin at 5.0"
    pin = "pip install 'nvidia-cuda-nvrtc-cu12<13' (and CuPy for CUDA 12)"
    return f"{lead}; {versions} does: {pin}. {_renamed_note(Arch(*capability))}".rstrip()
