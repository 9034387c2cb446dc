"""Tools for authors of kernels: the profile of a compile."""
