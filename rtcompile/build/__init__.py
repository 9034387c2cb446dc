"""The steps of a build; `pipeline` is the entry point and calls the other modules."""
