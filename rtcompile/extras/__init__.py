"""What the core does without: notebooks, clusters, packaging, records of programs, tools of developers."""
