"""Turns a `TranslationUnit` into `Compiled` or `CompileFailure`, by compilers in workers."""
