"""Lowered names from NVCC, which has no name expressions: markers in the source, read in the PTX."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

_FIRST_EXPRESSION = 2


@dataclass(frozen=True, slots=True)
class Markers:
    """Variables that hold the addresses of name expressions: their initialisers name the symbols.

    What an initialiser names in PTX is documented, unlike relocations in a cubin. Taken out of the
    PTX before it is assembled, the markers leave no trace: the machine code is that of the plain
    source with its templates instantiated. With ``-G`` debug information refers to them, and they
    stay.
    """

    prefix: str
    expressions: tuple[str, ...]

    @classmethod
    def of(cls, source: str, expressions: Iterable[str]) -> Markers:
        """Return the markers for a source's name expressions."""
        # Sorted and numbered as NVRTC does, whose messages name them by that number.
        ordered = tuple(sorted(set(expressions)))
        # The digest keeps the markers of two units that are linked together apart.
        digest = hashlib.sha256("\0".join((source, *ordered)).encode())
        return cls(f"rtcompile_{digest.hexdigest()[:16]}_", ordered)

    def text(self) -> str:
        """Return the declarations, a line of its own for each expression."""
        lines = [""]
        for i, expression in enumerate(self.expressions):
            # NVRTC takes `&x` and casts as well as plain names.
            plain = not expression.lstrip().startswith(("&", "("))
            here = f'#line {i + _FIRST_EXPRESSION} "__nv_name_map"'
            start = f'extern "C" __device__ void* const volatile {self.prefix}{i} = (void*)'
            # Kept on one line, since the numbers of the following lines count from here.
            one_line = " ".join(expression.splitlines())
            lines += [here, f"{start}{'&' if plain else ''}(", here, one_line, here, ");"]
        return "\n".join(lines)

    def named_in(self, log: str) -> str:
        """Return NVCC's log with errors in expressions as NVRTC writes them: naming the expression."""

        def rewritten(match: re.Match[str]) -> str:
            place, number, message = match.groups()
            index = int(number) - _FIRST_EXPRESSION
            # The source may have a "#line", or end in a `\`.
            if not 0 <= index < len(self.expressions):
                return match[0]
            expression = self.expressions[index]
            pragma = "  #pragma nv_mangled_name "
            return (
                f"{place}{message}\n{pragma}{expression}\n{'^':>{len(pragma) + 1}}\n\n"
                f"{place}Error in parsing name expression for lowered name lookup. "
                f'Input name expression was: "{expression}"\n'
            )

        return re.sub(r"(__nv_name_map\((\d+)\): error: )(.*)\n(?:[ \t].*\n)*", rewritten, log)

    def read(self, ptx: str) -> tuple[dict[str, str], str]:
        """Return the symbol of each expression, and the PTX without the markers."""
        # ".visible .global .align 8 .u64 NAME = generic(SYMBOL);"; functions without "generic".
        line = re.compile(
            rf"^[^\n]*\.global\b[^\n=]*\b{self.prefix}(\d+)\s*=\s*(?:generic\()?([\w$%.]+)\)?\s*;\n",
            re.MULTILINE,
        )
        found = {int(match[1]): match[2] for match in line.finditer(ptx)}
        for i, expression in enumerate(self.expressions):
            if i not in found:
                raise ValueError(f"nvcc's PTX names no symbol for the expression {expression!r}")
        unmarked = line.sub("", ptx)
        names = {expression: found[i] for i, expression in enumerate(self.expressions)}
        return names, ptx if self.prefix in unmarked else unmarked
