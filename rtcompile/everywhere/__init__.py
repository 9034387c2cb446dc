"""All of CuPy through rtcompile: CuPy's own kernels, and those of other people's libraries.

`install` puts rtcompile in the place of the one function through which CuPy compiles; `recording`
writes what a program asked for, and `warming` builds it before it is needed.
"""
