"""A compiler's log becomes what happened, why, and what to do about it."""
