"""Objects, manifests and books: what was built is found again, or built again; never guessed."""
