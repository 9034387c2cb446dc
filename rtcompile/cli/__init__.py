"""The `rtcompile` command: ``verbs.ini`` lists its verbs, their arguments, and the functions that run them."""

from __future__ import annotations

import argparse
import configparser
import os
import sys
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from rtcompile import __version__, errors
from rtcompile.cli import output
from rtcompile.errors import InvalidRequest

FAILED, WRONG, MISSING, CRASHED, INTERRUPTED = 1, 2, 3, 4, 130

_CODES: tuple[tuple[type[Exception], int], ...] = (
    (errors.CompilerCrashed, CRASHED),
    (errors.ToolkitNotFound, MISSING),
    (errors.UnsupportedArch, MISSING),
    (errors.InvalidRequest, WRONG),
    (OSError, WRONG),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] != ["run"]:  # with `run`, stdout belongs to the program
        output.prepare_streams()
        if argv is None:  # the process is the command's own: warnings without a line of Python
            warnings.formatwarning = lambda text, *_, **__: f"rtcompile: warning: {text}\n"
    try:
        return _run(words)
    except BrokenPipeError:  # the reader is gone, as in `rtcompile … | head`
        output.discard(1, 2)  # otherwise Python would write to the closed pipe again at exit
        return 0


def _run(argv: list[str]) -> int:
    try:
        given = parse(argv)
    except SystemExit:  # argparse has printed help, a version or an error
        problem = output.flush()
        if problem is None:
            raise
        print(f"rtcompile: {problem.strerror}", file=sys.stderr)
        return WRONG
    try:
        if (jobs := getattr(given, "jobs", None)) is not None:
            if jobs < 1:
                raise InvalidRequest(f"--jobs {jobs}: expected a positive number")
            os.environ["RTCOMPILE_JOBS"] = str(jobs)
        module, _, function = given.function.rpartition(".")
        code: int = getattr(import_module(f"rtcompile.{module}"), function)(given)
        problem = output.flush()
        if problem is not None:
            given.json = False  # stdout cannot be written
            raise problem
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except (errors.RtcompileError, OSError) as error:
        output.failure(error, given)
        code = exit_code(error)
        output.flush()
    return code


def exit_code(error: Exception) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


# --- The parser -------------------------------------------------------------------------------------

_EXIT_CODES = """\
exit codes:
  0  done
  1  the compiler or linker reported an error, or a check found something
  2  the arguments are wrong; doctor: something does not work
  3  something is not installed, or does not know the architecture
  4  the compiler crashed or took too long
  130  interrupted

Every verb takes --json. Options after -- are the compiler's own. `rtcompile VERB --help` shows a verb's options and an example.
"""

# Further parameters of `add_argument`, by the first spelling in ``verbs.ini``.
_MORE: dict[str, dict[str, Any]] = {
    "-I": {"dest": "include_dirs"},
    "-D": {"dest": "macros"},
    "-m": {"dest": "module_and_arguments"},
    "--backend": {"default": "auto"},
    "--target": {"default": "cubin"},
    "--timeout": {"type": float},
    "--dynamic-shared": {"type": int, "default": 0},
    "--block": {"type": int},
    "--top": {"type": int, "default": 15},
    "-j": {"type": int},
    "--root": {"default": "."},
}


def _tables() -> dict[str, dict[str, str]]:
    """Return the sections of ``verbs.ini``, with each value on one line."""
    parser = configparser.RawConfigParser(delimiters=(" : ",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(os.path.join(os.path.dirname(__file__), "verbs.ini"), encoding="utf-8")
    return {
        name: {key: " ".join(text.split()) for key, text in section.items()}
        for name, section in parser.items()
    }


_TABLES = _tables()
BUNDLE_ACTIONS = ("list", "verify")


def parse(argv: list[str]) -> argparse.Namespace:
    """Read a command line; print and exit for ``--help``, ``--version``, mistakes, or no verb."""
    compiler_options: list[str] = []
    if "--" in argv and argv[0] != "run":  # the words after `run PROGRAM` belong to the program
        argv, compiler_options = argv[: (at := argv.index("--"))], argv[at + 1 :]
    whole = parser()
    if argv[:1] != ["run"] and any(word[:2] == "--" and word[-3:] == "=--" for word in argv):
        whole.error("'--' is no value of an option")  # argparse makes a list of it
    if argv in ([], ["cache"]):
        argv = [*argv, "--help"]
    given, unknown = whole.parse_known_args(argv)
    sub = whole.verbs()[given.verb] if "verb" in given else whole
    sub = sub.verbs()[given.action] if "action" in given else sub
    if unknown or sub is whole:
        sub.error(_unknown(unknown[0], sub) if unknown else "no verb is given")
    given.compiler_options = compiler_options
    return given


def parser() -> Parser:
    """Return the parser of the whole command."""
    description = "Compile CUDA C++, and inspect the result. Needs neither a GPU nor CuPy."
    whole = Parser(prog="rtcompile", description=description, epilog=_EXIT_CODES)
    whole.add_argument("-V", "--version", action="version", version=f"rtcompile {__version__}")
    verbs = whole.add_subparsers(title="verbs", metavar="VERB")
    for name, verb in _TABLES.items():
        if "function" not in verb:
            continue
        summary, example = verb["summary"], verb["example"]
        sub = verbs.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.\n\n{verb['text']}",
            epilog=f"example:\n  {example}",
        )
        _add(name, sub)
        if name == "cache":
            actions = sub.add_subparsers(title="actions", metavar="ACTION", required=True)
            for action, what in _TABLES["cache: actions"].items():
                of_action = actions.add_parser(action, help=what, description=f"{what}.")
                of_action.set_defaults(action=action)
                _add(f"cache {action}", of_action)
                if action == "why-miss":
                    _add("builds", of_action.add_argument_group("the build"))
                _add("everywhere", of_action)
        else:
            _add("everywhere", sub)
        if "builds" in verb:
            _add("builds", sub.add_argument_group("the build"))
        sub.set_defaults(verb=name, function=verb["function"])
    return whole


def _add(section: str, to: argparse._ActionsContainer) -> None:
    """Add the arguments of a section of ``verbs.ini``."""
    for spelling, text in _TABLES.get(f"{section}: arguments", {}).items():
        *names, last = spelling.split()
        more = {"help": text, **_MORE.get(names[0] if names else last, {})}
        if last.startswith("-"):
            to.add_argument(*names, last, action="store_true", **more)
            continue
        if last == "…":
            last = names.pop()
            more.update(action="append", default=[])
        elif last in ("+", "*", "?", "..."):
            more["nargs"], last = last, names.pop()
        elif last.endswith("[,…]"):  # --arch a --arch b is the same as --arch a,b
            more.update(action="extend", type=lambda text: text.split(","))
        value = {"choices": last[1:-1].split(",")} if last[0] == "{" else {"metavar": last}
        to.add_argument(*names, **{**value, **more})


class _Help(argparse.HelpFormatter):
    """Wraps each line of the texts to the terminal, except lines that begin with two blanks."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  # argparse's signature
        return "\n".join(
            line if line.startswith("  ") else textwrap.fill(line, width, break_on_hyphens=False)
            for line in text.split("\n")
        )


class Parser(argparse.ArgumentParser):
    """A parser whose errors have two lines: the mistake with a suggestion, and where to find help."""

    def __init__(self, **more: Any) -> None:
        # Abbreviations are errors, since a new option would change their meaning.
        super().__init__(allow_abbrev=False, formatter_class=_Help, **more)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what, meant = f"is not one of {', '.join(known)}", _nearest(str(value), known)
        if action.metavar == "VERB":
            what, meant = "is not a verb", meant or f"; it is one of {', '.join(known)}"
            if value.endswith((".cu", ".cuh")):
                what = "is a file, not a verb"
                meant = f"; did you mean `{self.prog} compile {value}`?"
        raise argparse.ArgumentError(action, f"{value!r} {what}{meant}")

    def verbs(self) -> dict[str, Parser]:
        """Return the parsers of the verbs, or of a verb's actions, by their names."""
        return next(a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help shows what it takes\n")


def _unknown(word: str, sub: Parser) -> str:
    """Return what is wrong with a word that `sub` does not know, and what was probably meant."""
    if not word.startswith("-"):
        return f"{word!r} is one argument too many"
    spellings = list(sub._option_string_actions)
    name = word.partition("=")[0]
    if name in spellings:
        return f"{name} is an option of the verb: write it after `{sub.prog}`"
    message = f"there is no option {name}"
    if "--backend" not in spellings:
        return message + _nearest(name, spellings)
    if f"-{name}" in spellings:  # nvcc's -arch and -std
        return f"{message}; did you mean -{name}?"
    from rtcompile.request import options

    try:
        is_compilers = not options.parse([word]).unknown
    except InvalidRequest:
        is_compilers = True
    meant = "" if is_compilers else _nearest(name, spellings)
    return f"{message}{meant or '.'} Options of the compiler go after --: `{sub.prog} … -- {word}`"


def _nearest(word: str, known: Iterable[str]) -> str:
    import difflib  # only for a mistake

    found = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {found[0]}?" if found else ""
