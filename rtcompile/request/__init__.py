"""Requests, options, architectures and cache keys: pure functions and values, without I/O, CUDA or clocks."""
