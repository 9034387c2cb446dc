"""Python processes that a program under ``rtcompile run`` starts: they search this folder first."""
