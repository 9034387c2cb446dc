"""Runs compilers in separate processes: see `protocol`, `pool`, `zygote`."""
