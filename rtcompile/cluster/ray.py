"""Ray: `RayExecutor` and `warm_up`, at the names that users import them by."""

from rtcompile.extras.cluster.engines import RayExecutor as RayExecutor
from rtcompile.extras.cluster.engines import warm_up as warm_up
