"""What is known already: whether a build's files are unchanged, and where its code is kept."""
