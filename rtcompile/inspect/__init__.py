"""Reads machine code: its kernels and symbols, and the formats of a linker's inputs."""
