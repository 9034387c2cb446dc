"""Runs whole programs with all their CuPy kernels compiled by rtcompile, and records their builds."""
