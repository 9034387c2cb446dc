"""What programs call instead of CuPy's classes: `RawModule`, `RawKernel`, launches, the hook."""
