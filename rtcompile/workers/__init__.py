"""Runs compilers in separate processes: see `system`, `pool`, `zygote`."""
