"""``rtcompile completion``: a shell's completion of the command, made of its parser."""

from __future__ import annotations

import argparse

from rtcompile.cli.arguments import CACHE_ACTIONS, VERBS, parser
from rtcompile.errors import ToolkitNotFound


def _for_fish() -> str:
    """Return a completion script for fish, which shtab does not make."""
    lines = ["complete -c rtcompile -f"]
    for verb, sub in parser().verbs().items():
        summary = next(each.summary for each in VERBS if each.name == verb)
        lines.append(
            f"complete -c rtcompile -n __fish_use_subcommand -a {verb} -d {_quoted(summary)}"
        )
        seen = f"complete -c rtcompile -n '__fish_seen_subcommand_from {verb}'"
        for action in sub._actions:
            if isinstance(action, argparse._SubParsersAction):
                lines += [
                    f"{seen} -a {name} -d {_quoted(CACHE_ACTIONS[name])}" for name in action.choices
                ]
            names = [
                f"-{'l' if n[:2] == '--' else 's'} {n.lstrip('-')}" for n in action.option_strings
            ]
            value = "" if action.nargs == 0 else " -r"
            if action.choices and not isinstance(action.choices, dict):
                value += f" -a '{' '.join(map(str, action.choices))}'"
            if names:
                lines.append(f"{seen} {' '.join(names)}{value} -d {_quoted(action.help or '')}")
            elif action.dest in ("files", "file", "what", "program", "records", "targets"):
                lines.append(f"{seen} -F")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def run(given: argparse.Namespace) -> int:
    """Print a shell's completion script, which shtab makes of the parser; fish's is made here."""
    if given.shell == "fish":
        print(_for_fish())
        return 0
    try:
        import shtab
    except ImportError:
        missing = "completion needs shtab, which is not installed; `pip install rtcompile[cli]`"
        raise ToolkitNotFound(missing) from None
    print(shtab.complete(parser(), shell=given.shell))
    return 0
