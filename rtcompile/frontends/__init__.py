"""What programs call in place of CuPy's classes: `RawModule`, `RawKernel`, launches, the hook."""
