"""Combines the machine code of several architectures with the toolkit's ``fatbinary``."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence

from rtcompile import toolkit
from rtcompile.core.request import ObjectCode
from rtcompile.errors import LinkError, ToolkitNotFound


def combine(cubins: Sequence[ObjectCode]) -> bytes:
    """Return a fatbin of cubins for different architectures, made by nvcc's ``fatbinary``."""
    nvcc = toolkit.current().require_nvcc()
    program = os.path.join(os.path.dirname(nvcc.binary), "fatbinary")
    if not os.path.exists(program):
        raise ToolkitNotFound(f"fatbinary is not beside {nvcc.binary}; reinstall nvcc's package")
    with tempfile.TemporaryDirectory(prefix="fatbin-") as folder:
        images = []
        for number, cubin in enumerate(cubins):
            path = os.path.join(folder, f"{number}.cubin")
            with open(path, "wb") as file:
                file.write(cubin.code)
            images.append(f"--image3=kind=elf,sm={str(cubin.arch)[3:]},file={path}")
        made = os.path.join(folder, "made.fatbin")
        command = [program, "-64", f"--create={made}", *images]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            log = done.stdout + done.stderr
            raise LinkError(f"fatbinary refused the cubins: {log.strip()}", log=log)
        with open(made, "rb") as file:
            return file.read()
