"""Tools for authors of kernels."""
