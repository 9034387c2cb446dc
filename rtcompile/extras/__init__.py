"""Optional features that the core does not import.

They are launches beyond CuPy's, notebooks, clusters, packaging, records, and developers' tools.
"""
