"""Runs compilers in workers: each turns a `TranslationUnit` into `Compiled` or `CompileFailure`."""
