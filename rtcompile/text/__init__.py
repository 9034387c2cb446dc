"""Text for terminals and notebooks: styles and tables."""
