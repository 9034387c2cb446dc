"""`rtcompile doctor`: checks everything that builds need, and names what to install or unset."""
