"""`Diagnostic`: one message of a compiler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message of a compiler.

    Attributes
    ----------
    severity : {"fatal", "error", "warning", "remark", "note"}
    message : str
        The message, without its location and its severity.
    file : str
        The file as the compiler names it; empty if it names none.
    line, column : int
        1-based; 0 if unknown. Columns count characters.
    code : str
        The compiler's own number, ``"20014-D"``; empty if it gives none.
    excerpt : str
        The source line and caret as the compiler printed them.
    hint : str
        The cause and the fix for this build; empty if unknown.
    notes : tuple of Diagnostic
        Notes, details and instantiation contexts that belong to this message, innermost first.
    cause : str
        The beginning of `hint`, if ``str()`` shows it instead of `message`; otherwise empty.

    Examples
    --------
    >>> try:
    ...     rtcompile.compile("__global__ void k() { x = 1; }", arch="sm_80")
    ... except rtcompile.CompileError as error:
    ...     print(error.diagnostics[0].line, error.diagnostics[0].message)
    1 identifier "x" is undefined
    """

    severity: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    code: str = ""
    excerpt: str = ""
    hint: str = ""
    notes: tuple[Diagnostic, ...] = ()
    cause: str = ""

    @property
    def is_error(self) -> bool:
        """Whether this message made the build fail."""
        return self.severity in ("fatal", "error")

    def __str__(self) -> str:
        word = {"fatal": "fatal error"}.get(self.severity, self.severity)
        return f"{location_of(self)}{word}: {self.cause or self.message}"


def location_of(diagnostic: Diagnostic) -> str:
    """Return a message's location as ``"kernel.cu:3:9: "``; empty if it has none."""
    file = diagnostic.file
    if file == "__nv_name_map":  # NVRTC's name for the list of name expressions
        expression = diagnostic.excerpt.partition("nv_mangled_name ")[2].partition("\n")[0]
        expression = expression or diagnostic.message.partition(' was: "')[2].rstrip('"')
        return f"name_expressions=[{expression.strip()!r}]: "
    if "/include/" in file:  # as #include names it: cute/tensor.hpp
        file = file.rpartition("/include/")[2]
    parts = [file, str(diagnostic.line or ""), str((diagnostic.line and diagnostic.column) or "")]
    location = ":".join(part for part in parts if part)
    return f"{location}: " if location else ""
