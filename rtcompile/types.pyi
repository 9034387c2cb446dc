"""The types of results for type checkers, as in ``__init__.pyi``."""

from rtcompile.build.batch import BuildFuture as BuildFuture
from rtcompile.cache import CacheInfo as CacheInfo
from rtcompile.checkup.checks import Check as Check
from rtcompile.diagnostic import Diagnostic as Diagnostic
from rtcompile.extras.devtools import Profile as Profile
from rtcompile.extras.devtools import TemplateCost as TemplateCost
from rtcompile.extras.packaging.library import Kernel as Kernel
from rtcompile.extras.packaging.library import KernelModule as KernelModule
from rtcompile.extras.packaging.library import Parameter as Parameter
from rtcompile.extras.resources import KernelReport as KernelReport
from rtcompile.extras.resources import Occupancy as Occupancy
from rtcompile.extras.resources import Report as Report
from rtcompile.extras.resources import Spills as Spills
from rtcompile.files.headers import Header as Header
from rtcompile.frontends.cupy_hook import Installation as Installation
from rtcompile.request.object_code import BuildInfo as BuildInfo
