"""Reports what kernels need (registers, memory, spills), and advises how to launch them, from their code alone."""
