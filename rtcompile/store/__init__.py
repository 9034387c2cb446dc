"""The local cache: objects, the records that lead to them, and statistics."""
