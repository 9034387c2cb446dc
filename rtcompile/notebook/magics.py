"""``%%cuda``, ``%%cuda_header`` and ``%cuda_options``: CUDA C++ in the cells of a notebook."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from rtcompile.errors import RtcompileError, public
from rtcompile.messages import rendering
from rtcompile.notebook import show
from rtcompile.notebook.compilation import Line, Session
from rtcompile.notebook.kernels import CellModule
from rtcompile.text import styling


@magics_class
class CudaMagics(Magics):  # type: ignore[misc]
    """CUDA C++ in cells."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.session = Session()

    @cell_magic  # type: ignore[untyped-decorator]
    @public
    def cuda(self, line: str, cell: str) -> CellModule:
        """Compile a cell of CUDA C++ and bind its kernels to their names.

        %%cuda [--arch sm_90a] [--backend nvrtc|nvcc] [--module NAME] [-n 'f<float>'] [options]

        A kernel is called as CuPy's: ``scale((8,), (128,), (x, 2.0, n))``; of a template choose one
        first: ``scale["float"]``, or here with ``-n``. ``--module`` also binds the cell's module to
        a name. All other options go to the compiler: ``-DN=4 -I include -lineinfo
        --use_fast_math``.
        """
        with _readable():
            asked = Line.read(line)
            # Editors count the line of the magic too.
            module = self.session.compile(f"\n{cell}", asked)
        self.shell.push(module.kernels)
        if asked.module:
            self.shell.push({asked.module: module})
        return module

    @cell_magic  # type: ignore[untyped-decorator]
    @public
    def rtcompile(self, line: str, cell: str) -> CellModule:
        """Compile a cell of CUDA C++: the same as ``%%cuda``."""
        module: CellModule = self.cuda(line, cell)
        return module

    @cell_magic  # type: ignore[untyped-decorator]
    @public
    def cuda_header(self, line: str, cell: str) -> None:
        """Keep a cell as a header that later cells include.

        %%cuda_header shapes.cuh
        """
        with _readable():
            self.session.keep_header(line, cell)

    @line_magic  # type: ignore[untyped-decorator]
    @public
    def cuda_options(self, line: str) -> None:
        """Set the options that every later ``%%cuda`` begins with, and an empty line removes.

        %cuda_options --arch sm_90a --use_fast_math
        """
        with _readable():
            self.session.defaults = Line.read(line)


class _readable:  # noqa: N801  # a statement's word
    """Shows errors with options as a cell spells them, and an interrupt as one line."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            _show_as(error, "Interrupted: nothing is being compiled any longer.")
        elif isinstance(error, RtcompileError):
            _show_as(error, styling.as_traceback(rendering.told(error, "cell")))


def _show_as(error: BaseException, text: str) -> None:
    # IPython calls this method of an exception instead of formatting a traceback.
    error._render_traceback_ = lambda: text.split("\n")  # type: ignore[attr-defined]


def load(shell: Any) -> None:
    """Register the magics, and how modules and kernels are displayed."""
    shell.register_magics(CudaMagics)
    formatters = shell.display_formatter.formatters
    for module, name in (
        ("rtcompile.notebook.kernels", "CellModule"),
        ("rtcompile.notebook.kernels", "CellKernel"),
        ("rtcompile.notebook.kernels", "CellTemplate"),
        ("rtcompile.core.object_code", "ObjectCode"),
        ("rtcompile.modules", "RawModule"),
        ("rtcompile.kernels", "RawKernel"),
    ):
        formatters["text/html"].for_type_by_name(module, name, show.as_html)
        formatters["text/plain"].for_type_by_name(
            module, name, lambda shown, printer, cycle: printer.text(show.as_text(shown))
        )
