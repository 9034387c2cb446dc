"""Kernels in an editor: what clangd needs to understand them."""
