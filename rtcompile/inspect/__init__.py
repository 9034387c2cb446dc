"""Reads machine code: kernels, symbols, resources, and advice for launches."""
