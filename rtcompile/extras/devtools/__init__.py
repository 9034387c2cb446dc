"""For the author of kernels: profiles, a database for clangd, reloading."""
