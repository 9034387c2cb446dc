"""The public names for type checkers, which do not see what is imported when it is first used.

A test compares them with those of ``__init__.py``.
"""

from rtcompile import cache as cache
from rtcompile import messages as messages
from rtcompile import types as types
from rtcompile.api import compile as compile
from rtcompile.build.many import compile_many as compile_many
from rtcompile.build.many import submit_many as submit_many
from rtcompile.checkup import doctor as doctor
from rtcompile.checkup import explain as explain
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
from rtcompile.extras.launching import tensor_map as tensor_map
from rtcompile.extras.notebook import load_ipython_extension as load_ipython_extension
from rtcompile.extras.packaging.library import KernelLibrary as KernelLibrary
from rtcompile.frontends.cupy_hook import install as install
from rtcompile.frontends.cupy_hook import uninstall as uninstall
from rtcompile.frontends.raw_kernel import RawKernel as RawKernel
from rtcompile.frontends.raw_module import RawModule as RawModule
from rtcompile.lookup.bundles import use_bundle as use_bundle
from rtcompile.request.object_code import ObjectCode as ObjectCode
from rtcompile.request.request import CompileRequest as CompileRequest
from rtcompile.request.values import Arch as Arch

__version__: str

_HOME: dict[str, str]
_TYPES: frozenset[str]

def _load(name: str) -> object: ...
