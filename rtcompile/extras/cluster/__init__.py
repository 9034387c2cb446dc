"""One compile for a whole cluster: shared stores behind the local cache, and engines for batches.

A store is queried only after a miss of the local cache. If it fails, the user gets one warning, and
the build is made on this machine.
"""
