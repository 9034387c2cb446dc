"""Files: whether they changed, who could have written them, and where they are."""
