"""Dask: `WarmUp`, at the name that users import it by."""

from rtcompile.extras.cluster.engines import WarmUp as WarmUp
