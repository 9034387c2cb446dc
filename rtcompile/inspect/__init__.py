"""Reads machine code: its kernels, symbols and resources, and how to launch it."""
