"""Requests: values, checks and decisions without I/O, CUDA or clocks."""
