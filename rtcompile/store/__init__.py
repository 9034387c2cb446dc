"""The local cache: objects, the manifests that lead to them, and statistics."""
