"""The public names for type checkers, which do not see what is imported when it is first used.

A test compares them with those of ``__init__.py``.
"""

from rtcompile._version import __version__ as __version__
from rtcompile.api import compile as compile
from rtcompile.building.batch import BuildFuture as BuildFuture
from rtcompile.bundles import use_bundle as use_bundle
from rtcompile.core.arch import Arch as Arch
from rtcompile.core.header import Header as Header
from rtcompile.core.object_code import BuildInfo as BuildInfo
from rtcompile.core.object_code import ObjectCode as ObjectCode
from rtcompile.core.occupancy import Occupancy as Occupancy
from rtcompile.core.request import CompileRequest as CompileRequest
from rtcompile.errors import BatchError as BatchError
from rtcompile.errors import CompileError as CompileError
from rtcompile.errors import CompilerCrashed as CompilerCrashed
from rtcompile.errors import CompileTimeout as CompileTimeout
from rtcompile.errors import CupyNotFound as CupyNotFound
from rtcompile.errors import DriverError as DriverError
from rtcompile.errors import ExecutorError as ExecutorError
from rtcompile.errors import InvalidRequest as InvalidRequest
from rtcompile.errors import JitDisabled as JitDisabled
from rtcompile.errors import JitifyError as JitifyError
from rtcompile.errors import LinkError as LinkError
from rtcompile.errors import RtcompileError as RtcompileError
from rtcompile.errors import RtcompileWarning as RtcompileWarning
from rtcompile.errors import ToolkitNotFound as ToolkitNotFound
from rtcompile.errors import UnsupportedArch as UnsupportedArch
from rtcompile.everywhere.seam import Installation as Installation
from rtcompile.everywhere.seam import install as install
from rtcompile.everywhere.seam import uninstall as uninstall
from rtcompile.kernels import RawKernel as RawKernel
from rtcompile.many import compile_many as compile_many
from rtcompile.many import submit_many as submit_many
from rtcompile.messages.diagnostics import Diagnostic as Diagnostic
from rtcompile.modules import RawModule as RawModule
from rtcompile.notebook import load_ipython_extension as load_ipython_extension
from rtcompile.packages.library import Kernel as Kernel
from rtcompile.packages.library import KernelLibrary as KernelLibrary
from rtcompile.packages.library import KernelModule as KernelModule
from rtcompile.packages.signature import Parameter as Parameter
from rtcompile.tensors import tensor_map as tensor_map
from rtcompile.watching.advice import Advice as Advice
from rtcompile.watching.profiling import HeaderCost as HeaderCost
from rtcompile.watching.profiling import Profile as Profile
from rtcompile.watching.profiling import TemplateCost as TemplateCost
from rtcompile.watching.report import KernelReport as KernelReport
from rtcompile.watching.report import Report as Report
from rtcompile.watching.report import Spills as Spills
