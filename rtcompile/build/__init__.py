"""The steps of one build. `pipeline` is the first to read; it calls the other modules."""
