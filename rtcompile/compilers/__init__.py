"""The compilers: a `TranslationUnit` goes in, `Compiled` or `CompileFailure` comes out, run in a worker."""
