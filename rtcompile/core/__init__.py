"""Values and decisions: no I/O, no CUDA, no clock, no environment."""
