"""Processes that compilers run in, so that none runs in the user's: see `protocol`, `pool`, `zygote`."""
