"""The documented names of the cluster extra: `rtcompile.cluster.dask` and `rtcompile.cluster.ray`."""
