"""The page of an executed notebook: its cells, and what IPython showed below each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")


def executed(path: str) -> str:
    """Run a notebook's cells in IPython, and return a page of them in Markdown."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    cells = json.loads((_ROOT / path).read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"^#", "##", text, flags=re.MULTILINE))
            continue
        language = "cuda" if text.startswith("%%cuda") else "ipython"
        parts.append(f"```{language}\n{text}\n```")
        parts += _shown(shell, text)
    return "\n\n".join(parts)


def _shown(shell: Any, text: str) -> list[str]:
    """Return what a cell printed, and its result as the notebook shows it: plain HTML."""
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        result = shell.run_cell(text)
    printed = "" if result.error_in_exec is None else _ESCAPE.sub("", captured.stdout).strip()
    shown = [f"```text\n{printed}\n```"] if printed else []
    if result.error_in_exec is None and result.result is not None:
        data, _ = shell.display_formatter.format(result.result)
        if "text/html" in data:
            shown.append(f'```{{raw}} html\n<div class="output">{data["text/html"]}</div>\n```')
    return shown
