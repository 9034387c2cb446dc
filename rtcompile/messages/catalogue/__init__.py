"""The catalogue of compiler, linker and driver messages: the cause of each and what to do.

Each message is a row. The first row that fits is used, so specific rows come before general ones.
"""

from __future__ import annotations

from rtcompile.messages.catalogue import (
    assembling,
    crashes,
    device_code,
    driver,
    headers,
    launches,
    names,
    nvcc,
    options,
    tensor_cores,
)
from rtcompile.messages.known import KnownMessage

__all__ = ["MESSAGES"]

MESSAGES: tuple[KnownMessage, ...] = (
    *options.ROWS,
    *headers.ROWS,
    *device_code.ROWS,
    *tensor_cores.ROWS,
    *names.ROWS,
    *assembling.ROWS,
    *nvcc.ROWS,
    *crashes.ROWS,
    *driver.ROWS,
    *launches.ROWS,
)
