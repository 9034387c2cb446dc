"""Optional features that the core does not import: notebooks, clusters, packaging, records, developers' tools."""
