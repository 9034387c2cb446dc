"""The clients of shared stores, which are queried after a miss of the local cache."""
