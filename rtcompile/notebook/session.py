"""What a notebook keeps between its cells: headers, and the options that all cells get."""

from __future__ import annotations

import os
from contextlib import suppress

from rtcompile.errors import InvalidRequest
from rtcompile.notebook import cells
from rtcompile.notebook.compilation import Compilation
from rtcompile.notebook.kernels import CellModule
from rtcompile.notebook.line import Line
from rtcompile.storage import temporary

__all__ = ["Session"]


class Session:
    """One notebook: its header cells, and the options that all its cells get."""

    def __init__(self) -> None:
        self.defaults = Line()
        self._folder = ""

    @property
    def folder(self) -> str:
        """The folder of the headers, as long as the process lives."""
        if not self._folder:
            self._folder = temporary.folder("notebook")
        return self._folder

    def keep_header(self, name: str, text: str) -> None:
        """Make `text` includable as `name` by the cells of this notebook.

        Raises
        ------
        InvalidRequest
            A name that would lie elsewhere, or none.
        """
        name = name.strip().strip("\"'<>")
        if not name or os.path.isabs(name) or ".." in name.split("/"):
            raise InvalidRequest(f"%%cuda_header {name}: give a name to include it by: shapes.cuh")
        path = os.path.join(self.folder, name)
        text = cells.without_comments(text)
        with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            if file.read() == text:
                return  # as it was: nobody need look at it again
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def compile(self, source: str, line: Line) -> CellModule:
        """Compile a cell; `Compilation.module` says what can go wrong."""
        return Compilation(source, line.after(self.defaults), self.folder).module()
