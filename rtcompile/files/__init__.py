"""Files: detects changes, and rejects files that another user could have written."""
