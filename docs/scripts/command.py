"""The reference of the command, from its parser."""

from __future__ import annotations

import argparse

from rtcompile import cli


def reference(_: str) -> str:
    """Return a section for each verb: its help, as the command prints it."""
    whole = cli.parser()
    sections = [f"```text\n{_help(whole)}```"]
    for name, parser in whole.verbs().items():
        sections.append(f"## rtcompile {name}\n\n```text\n{_help(parser)}```")
        for action, below in _actions(parser).items():
            sections.append(f"### rtcompile {name} {action}\n\n```text\n{_help(below)}```")
    return "\n\n".join(sections)


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _help(parser: argparse.ArgumentParser) -> str:
    formatter = parser.formatter_class
    parser.formatter_class = lambda prog: formatter(prog, width=88)  # type: ignore[assignment]
    try:
        return parser.format_help()
    finally:
        parser.formatter_class = formatter
