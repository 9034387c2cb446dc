"""Files: whether they changed, and who could have written them."""
