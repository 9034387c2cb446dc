"""Messages about WMMA and CuTe."""

from __future__ import annotations

from rtcompile.messages import facts
from rtcompile.messages.known import KnownMessage, row

ROWS: tuple[KnownMessage, ...] = (
    row(
        "wmma-namespace",
        r"name must be a namespace name\n[^\n]*nvcuda",
        "The namespace nvcuda is not there. {why}",
        "Include <mma.h> and compile for sm_70 or above; through rtcompile the architecture is "
        "always fixed first.",
        "NVRTC 12.4",
        facts.namespace,
    ),
    row(
        "wmma-fragment",
        r"incomplete type (?:\"nvcuda::wmma::fragment<(?P<fragment>[^\"]*)>\" )?is not allowed"
        r"(?(fragment)|\n[^\n]*fragment<)",
        "There is no such WMMA fragment. {why}",
        "Change the shape, the element type, or the architecture.",
        "NVRTC 12.4",
        facts.fragment,
    ),
    row(
        "cp-async-in-cute",
        r"cp\.async sizeof\(TS\) is not supported(?:[\s\S]*?TS=(?P<type>[^,\]]+))?",
        "cp.async of one {copied} is illegal: the hardware copies 4, 8 or 16 bytes (CACHEGLOBAL: 16 only).",
        "Give the atom a wider type, Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint32_t>, T> or "
        "<cute::uint128_t>, with threads that hold that many neighbours; or use UniversalCopy, or "
        "rtcompile::copy_async of <rtcompile/async_copy.cuh>, which chooses for any element type.",
        "CUTLASS 3.5",
        lambda match, _: {"copied": match["type"] or "element of this size"},
    ),
    row(
        "copy-partitioning",
        r"CopyAtom: Src/Dst partitioning does not match",
        "The layout gives the copy atom fewer or other elements than one instruction moves.",
        "Let each thread hold contiguous elements (the value layout of make_tiled_copy), or use a "
        "narrower atom or UniversalCopy.",
        "CUTLASS 3.5",
    ),
)
