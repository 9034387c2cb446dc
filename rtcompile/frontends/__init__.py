"""The replacements for CuPy's classes: `RawModule`, `RawKernel`, and the hook into CuPy."""
