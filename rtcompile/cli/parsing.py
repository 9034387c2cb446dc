"""The command's argument parser: help that fits the terminal, and suggestions after mistakes."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

from rtcompile.errors import InvalidRequest


class Help(argparse.HelpFormatter):
    """Wraps the paragraphs of help to the terminal; lines that begin with two blanks stay."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled: list[str] = []
        for block in re.split(r"\n{2,}", text.strip("\n")):
            words: list[str] = []
            lines: list[str] = []
            for line in block.split("\n"):
                if line.startswith("  "):
                    lines += [*_filled(words, width), line]
                    words = []
                else:
                    words.append(line)
            filled.append("\n".join([*lines, *_filled(words, width)]))
        return "\n\n".join(filled)


class Joined(argparse.Action):
    """Makes `--x a --x b` the same as `--x a,b`: without it all but the last would be forgotten."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


def _filled(words: list[str], width: int) -> list[str]:
    return textwrap.wrap(" ".join(words), width, break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser whose errors have two lines: the mistake with a suggestion, and where to find help."""

    def __init__(self, **more: Any) -> None:
        # Abbreviations are refused, since a new option would change their meaning.
        super().__init__(allow_abbrev=False, **more)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            says = f"{value!r} is none of {', '.join(known)}{_nearest(str(value), known)}"
            raise argparse.ArgumentError(action, says)

    def verbs(self) -> dict[str, argparse.ArgumentParser]:
        """Return the parsers of the verbs by their names."""
        actions = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        return dict(next(actions).choices)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help shows what it takes\n")


def read(whole: Parser, argv: list[str]) -> argparse.Namespace:
    """Read a command line that has a verb; print and exit for ``--help`` and mistakes."""
    verbs = whole.verbs()
    if not argv[0].startswith("-") and argv[0] not in verbs:
        whole.error(_unknown_verb(argv[0], verbs))
    if argv[0].startswith("-") and argv[0] not in whole._option_string_actions:
        known = whole._option_string_actions
        name = argv[0].partition("=")[0]
        if all(name in verb._option_string_actions for verb in verbs.values()):
            whole.error(f"{name} stands behind the verb: `rtcompile VERB {name}`")
        whole.error(f"there is no option {name}{_nearest(name, known)}")
    given, unknown = whole.parse_known_args(argv)
    if unknown:
        sub = verbs[given.verb]
        sub.error(_unknown_argument(unknown[0], sub))
    return given


def _unknown_verb(word: str, verbs: Iterable[str]) -> str:
    if word.endswith((".cu", ".cuh")):
        return f"{word!r} is a file, not a verb; did you mean `rtcompile compile {word}`?"
    return f"{word!r} is not a verb{_nearest(word, verbs) or '; it is one of ' + ', '.join(verbs)}"


def _unknown_argument(word: str, sub: argparse.ArgumentParser) -> str:
    if not word.startswith("-"):
        return f"{word!r} is one argument too many"
    actions = sub._actions
    spellings = [text for action in actions for text in action.option_strings]
    name = word.partition("=")[0]
    says = f"there is no option {name}"
    if not any(action.dest == "backend" for action in actions):
        return says + _nearest(name, spellings)
    if f"-{name}" in spellings:  # nvcc's -arch and -std
        return f"{says}; did you mean -{name}?"
    meant = "" if _is_compilers(word) else _nearest(name, spellings)
    return f"{says}{meant or '.'} Options of the compiler stand after --: `{sub.prog} … -- {word}`"


def _is_compilers(word: str) -> bool:
    from rtcompile.core import options

    try:
        return not options.parse([word]).unknown
    except InvalidRequest:
        return True


def _nearest(word: str, known: Iterable[str]) -> str:
    import difflib  # only for a mistake

    found = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {found[0]}?" if found else ""
