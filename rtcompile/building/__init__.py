"""The story of one build, from top to bottom: read `pipeline` first."""
