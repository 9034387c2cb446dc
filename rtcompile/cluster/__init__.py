"""One compile for a whole cluster: shared stores behind the local cache, and engines for batches.

A store is asked only after the local cache had nothing, and is never needed: whatever goes wrong
with it is one warning, and the build is made here.
"""
