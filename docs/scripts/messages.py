"""The page of errors, from the catalogue of messages and from what provokes each in the tests."""

from __future__ import annotations

from collections.abc import Iterator

from rtcompile.messages.catalogue import MESSAGES
from tests import provoked

_LINES_SHOWN = 30  # of a source that was generated


def page(_: str) -> str:
    """Return a section for each message: the compiler's words, the cause, what to do, a source."""
    tested = provoked.coverage()
    seen = dict(_seen())
    return "\n\n".join(_section(known, tested, seen) for known in MESSAGES)


def _section(known, tested, seen) -> str:  # type: ignore[no-untyped-def]
    says, source, language, how = seen.get(known.id, ("", "", "", ""))
    parts = [f"## {known.id}"]
    if says:
        parts.append(f"The compiler's words: `{_code(says)}`")
    parts += [
        f"**What it means.** {_plain(known.cause)}",
        f"**What to do.** {_plain(known.fix)}",
    ]
    if source:
        shown = "\n".join(source.splitlines()[:_LINES_SHOWN])
        parts.append(f"A source that provokes it{how}:\n\n```{language}\n{shown}\n```")
    kind = {
        "provoked": "A test provokes it from a real compiler, linker or driver library.",
        "as reported": "It is recognised in the words in which others reported it.",
    }[tested[known.id]]
    parts.append(
        f"Recognised by the pattern `{_code(known.pattern.pattern)}`, "
        f"seen with {known.since} and later. {kind}"
    )
    return "\n\n".join(parts)


def _seen() -> Iterator[tuple[str, tuple[str, str, str, str]]]:
    # The first case of a row is the plainest; dict() keeps the last of equal keys.
    for param in reversed([*provoked.BY_NVRTC, *provoked.BY_NVCC]):
        row, case = param.values
        options = [f"for `{case.arch}`"] if not case.alone else []
        if case.options:
            options.append(f"with the options `{_code(case.options)}`")
        if case.names:
            options.append("with the name expression " + ", ".join(f"`{n}`" for n in case.names))
        if case.toolkit not in ("12", "13"):
            options.append(f"with the toolkit {case.toolkit}")
        yield row, (case.says, case.source, "cuda", f" ({', '.join(options)})" if options else "")
    for row, says, _, (_, _, given, options) in provoked.BY_NVJITLINK:
        ptx = given if isinstance(given, str) and given.startswith(".version") else ""
        yield row, (says, ptx, "text", f" (PTX, linked with `{options}`)" if options else "")
    provokable = {param.values[0] for param in (*provoked.BY_NVRTC, *provoked.BY_NVCC)}
    for says, row, _ in provoked.AS_REPORTED:
        if row not in provokable:
            yield row, (" ".join(says.split()), "", "", "")


def _code(text: str) -> str:
    return " ".join(text.replace("`", "'").split())


def _plain(text: str) -> str:
    """Return a template with the names in braces marked as what is filled in, outside code."""
    text = text.replace("{{", "\x01").replace("}}", "\x02")
    text = text.replace("{", "\u2039").replace("}", "\u203a")
    text = text.replace("\x01", "{").replace("\x02", "}")
    return text.replace("<", r"\<").replace("*", r"\*").replace("__", r"\_\_")
