"""What is requested, as values and decisions: no I/O, no CUDA, no clock."""
