"""Keeps what was built: objects, the manifests that lead to them, and statistics of their use."""
