"""Compiles all of CuPy's kernels with rtcompile: CuPy's own, and those of other libraries.

`install` replaces the function through which CuPy compiles. `recording` writes a program's requests
to a file, and `warming` builds them before they are needed.
"""
