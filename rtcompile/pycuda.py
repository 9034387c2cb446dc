"""PyCUDA's `SourceModule`, with rtcompile's compiler, headers and cache."""

from rtcompile.extras.pycuda import Function as Function
from rtcompile.extras.pycuda import In as In
from rtcompile.extras.pycuda import InOut as InOut
from rtcompile.extras.pycuda import Out as Out
from rtcompile.extras.pycuda import SourceModule as SourceModule
