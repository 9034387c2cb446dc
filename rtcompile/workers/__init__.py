"""The processes in which compilers run, apart from the user's: see `protocol`, `pool`, `zygote`."""
