"""One compile for a whole cluster: clients of shared stores, and executors for batches.

A store is queried only after a miss of the local cache. If it fails, there is one warning, and this machine
compiles.
"""
