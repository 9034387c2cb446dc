"""Where files are, and who could have written them."""
