"""The matrix for the tests of all doors: kernels, spellings of options, and edits."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from tests.doors import TAKES
from tests.kernel_process import Process

KERNEL = """
extern "C" __device__ const char text[] = "TEXT:" VALUE;
extern "C" __global__ void k(char* p) { *p = text[threadIdx.x]; }
"""
TEMPLATE = """
extern "C" __device__ const char text[] = "TEXT:" VALUE;
template <class T> __global__ void k(T* p) { *p = text[threadIdx.x]; }
"""
KERNELS = {
    "plain": '#define VALUE "none"' + KERNEL,
    "own header": '#include "value.h"' + KERNEL,
    "WMMA": '#include <mma.h>\n#include "value.h"' + KERNEL,
    "CuTe": '#include <cute/tensor.hpp>\n#include "value.h"' + KERNEL,
}
QUICK = [name for name in KERNELS if name != "CuTe"]
DOORS = list(TAKES)
NAMES = {"install": "k.cu", "cell": "cell.cu"}  # the program's name, if a door sets its own
FOLDERS = {
    "include": "1",
    "Köpfe": "1",
    "earlier": "",
    "later": "later",
}  # and the value in their value.h
OPTIONS = ("-DTILE=16", "--use_fast_math", "-I{folder}")
# Options and further arguments. All are equivalent to `OPTIONS` for a compiler.
SPELLINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tuple": (OPTIONS, {}),
    "list": (list(OPTIONS), {}),
    "str": (" ".join(OPTIONS), {}),
    "jitify=False": (OPTIONS, {"jitify": False}),
    "jitify=True": (OPTIONS, {"jitify": True}),
    "arch=": (OPTIONS, {"arch": "sm_80"}),
    "pch=": (OPTIONS, {"pch": True}),
    "timeout=": (OPTIONS, {"timeout": 60.0}),
    "fallback=": (OPTIONS, {"fallback": "auto"}),
    "name_expressions": (OPTIONS, {"name_expressions": ["k<char>"]}),
    "headers=": (OPTIONS, {"headers": {"value.h": '#define VALUE "1"\n'}}),
    "a relative -I": (("-DTILE=16", "-I", "include", "--use_fast_math"), {}),
    "a non-ASCII -I": ((*OPTIONS[:2], "-I{root}/Köpfe"), {}),
}

# CuPy accepts no str.
MATRIX = [
    (door, spelling)
    for door, takes in TAKES.items()
    for spelling, (options, more) in SPELLINGS.items()
    if more.keys() <= takes and (door, spelling) != ("install", "str")
]


# --- a program -------------------------------------------------------------------------------------


class Program:
    """A program in two processes, with a folder of headers, that requests one kernel."""

    def __init__(self, folder: Path, processes: list[Process], scratch: Path) -> None:
        self.first, self.second = processes
        self.scratch = scratch
        self.folder = folder / "include"
        self.header = self.folder / "value.h"
        self.make_folders()
        for process in processes:
            process.run(f"os.chdir({str(folder)!r})")
        # The comment separates this program's builds in the shared cache; it is not in the code.
        self.salt = f"// {folder}\n"

    def make_folders(self) -> None:
        """Make the folders of headers as they are before any edit."""
        shutil.rmtree(self.folder.with_name("before"), ignore_errors=True)
        for name, value in FOLDERS.items():
            tree = self.folder.parent / name
            shutil.rmtree(tree, ignore_errors=True)
            tree.mkdir()
            if value:
                (tree / "value.h").write_text(f'#define VALUE "{value}"\n')

    def options(self, door: str, options: Any) -> Any:
        """Return options in the door's form: a cell's options are one line."""
        paths = {"folder": self.folder, "root": self.folder.parent}
        if isinstance(options, str):
            return options.format(**paths)
        filled = type(options)(option.format(**paths) for option in options)
        return shlex.join(filled) if door == "cell" else filled

    def request(
        self, process: Process, door: str, source: str, options: Any = (), /, **more: Any
    ) -> bytes:
        return process.request(door, self.salt + source, self.options(door, options), **more)


# --- edits -----------------------------------------------------------------------------------------

# Includes files in all ways: beside another header, along the search path, and by __has_include.
REQUESTED = """
#include "value.h"
#if __has_include(<extra.h>)
#define MORE ", and extra"
#else
#define MORE ""
#endif
extern "C" __device__ const char text[] = "TEXT:" VALUE MORE OPTION;
extern "C" __global__ void k(char* p) { *p = text[threadIdx.x]; }
"""
EDITED = ("-I{root}/earlier", "-I{folder}", "-I{root}/later", "-DOPTION=")


def header_edited(program: Program) -> str:
    program.header.write_text('#define VALUE "2"\n')
    return "2"


def header_edited_and_its_time_set_back(program: Program) -> str:
    before = program.header.stat()
    program.header.write_text('#define VALUE "2"\n')
    os.utime(program.header, ns=(before.st_atime_ns, before.st_mtime_ns))
    return "2"


def header_replaced_by_a_rename(program: Program) -> str:
    new = program.folder / "new.h"
    new.write_text('#define VALUE "2"\n')
    new.rename(program.header)
    return "2"


def header_added_earlier(program: Program) -> str:
    (program.folder.parent / "earlier" / "value.h").write_text('#define VALUE "earlier"\n')
    return "earlier"


def header_removed(program: Program) -> str:
    program.header.unlink()
    return "later"


def header_is_now_a_link(program: Program) -> str:
    (program.folder / "other.h").write_text('#define VALUE "2"\n')
    program.header.unlink()
    program.header.symlink_to("other.h")
    return "2"


def header_is_now_a_folder(program: Program) -> str:
    program.header.unlink()
    program.header.mkdir()
    return "later"


def folder_is_another(program: Program) -> str:
    program.folder.rename(program.folder.with_name("before"))
    program.folder.mkdir()
    program.header.write_text('#define VALUE "2"\n')
    return "2"


def optional_header_added(program: Program) -> str:
    (program.folder / "extra.h").touch()
    return "1, and extra"


EDITS = (
    header_edited,
    header_edited_and_its_time_set_back,
    header_replaced_by_a_rename,
    header_added_earlier,
    header_removed,
    header_is_now_a_link,
    header_is_now_a_folder,
    folder_is_another,
    optional_header_added,
)
