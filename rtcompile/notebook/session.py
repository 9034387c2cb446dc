"""The state of a notebook between its cells: headers, and the options of all cells."""

from __future__ import annotations

import os
from contextlib import suppress

from rtcompile.errors import InvalidRequest
from rtcompile.notebook import cells
from rtcompile.notebook.compilation import Compilation
from rtcompile.notebook.kernels import CellModule
from rtcompile.notebook.line import Line
from rtcompile.storage import temporary


class Session:
    """One notebook: its header cells, and the options of all its cells."""

    def __init__(self) -> None:
        self.defaults = Line()
        self._folder = ""

    @property
    def folder(self) -> str:
        """The temporary folder of the headers, which is removed when the process ends."""
        if not self._folder:
            self._folder = temporary.folder("notebook")
        return self._folder

    def keep_header(self, name: str, text: str) -> None:
        """Keep `text` as a header that the cells of this notebook can include as `name`."""
        name = name.strip().strip("\"'<>")
        if not name or os.path.isabs(name) or ".." in name.split("/"):
            raise InvalidRequest(f"%%cuda_header {name}: give a name to include it by: shapes.cuh")
        path = os.path.join(self.folder, name)
        text = cells.read(text, keep_lines=True).source
        with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            if file.read() == text:
                return  # unchanged, so no build has to check it again
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def compile(self, source: str, line: Line) -> CellModule:
        """Compile a cell; raises the errors of `Compilation.module`."""
        return Compilation(source, line.after(self.defaults), self.folder).module()
