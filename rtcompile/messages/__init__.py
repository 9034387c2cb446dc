"""Parses compilers' logs, explains errors with cause and fix, and decides about the fallback to NVCC."""
