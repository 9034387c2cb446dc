"""The replacements for CuPy's classes: `RawModule`, `RawKernel`, launches, and the hook into CuPy."""
