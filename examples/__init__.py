"""Programs to copy from: each runs as ``python -m examples.NAME`` and is tested with and without a GPU."""
