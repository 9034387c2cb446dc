"""Runs compilers in processes of their own: see `protocol`, `pool`, `zygote`."""
