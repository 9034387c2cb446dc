"""Text as terminals and notebooks show it."""
