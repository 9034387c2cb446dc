"""Draws the random kernels and steps of the model's worlds."""

import random
from typing import Any, NamedTuple

from tests.trials.trees import FOLDERS, NAMES

PATHS = [f"{folder}/{name}" for folder in FOLDERS for name in NAMES]
TAIL = "".join(f'\n#ifndef M{i}\n#define M{i} "-"\n#endif' for i in range(len(NAMES))) + (
    '\nextern "C" __device__ const char text[] = "TEXT:" '
    + " ".join(f"M{i}" for i in range(len(NAMES)))
    + ';\nextern "C" __global__ void k(char* p) { *p = text[threadIdx.x]; }\n'
)

# The link inputs; a string in each contains one of two numbers.
LIBRARIES = ("d0/l.ltoir", "d1/l.ptx", "d2/l.cu")
NUMBERS = ("1111", "2222")
LIBRARY = """extern "C" __device__ const char linked[] = "LINKED:%s";
extern "C" __device__ int lib(int i) { return linked[i]; }
"""
CALLS = """
extern "C" __device__ int lib(int);
extern "C" __global__ void calls(int* p) { *p = lib(threadIdx.x); }
"""

# Ways to include X if it exists. {n} is a number, for unique macros.
INCLUDES = (
    "#if __has_include({x})\n#include {x}\n#endif",
    "#if __has_include( /* c */ {x})\n#include {x}\n#endif",
    "#if __has_include /**/ ({x})\n#include {x}\n#endif",
    "#if __has_\\\ninclude(\\\n{x})\n#include {x}\n#endif",
    "#if\f__has_include(\f{x})\n#include\f{x}\n#endif",
    "#define HAS{n}(a, b) __has_include(b)\n#if HAS{n}(<none>, {x})\n#include {x}\n#endif",
    "#define CAT{n}(a, b) a##b\n#if CAT{n}(__ha,s_include)({x})\n#include {x}\n#endif",
    "#define Q{n} {x}\n#if __has_include(Q{n})\n#include Q{n}\n#endif",
    "#ifdef __has_include\n#if !__has_include({x})\n#else\n#include {x}\n#endif\n#endif",
    "#if 0\n#elif __has_include({x})\n# /*\n*/ include {x}\n#endif",
    "#if __has_include({x})\n%:include /*\n*/ {x}\n#endif",
    "#if __has_include_next({x})\n#include_next {x}\n#endif",
    "#include {x}",
)
# The last one is an error if X is missing.
_USUAL = (20,) + (3,) * (len(INCLUDES) - 2) + (1,)


class Step(NamedTuple):
    """A change, the kernel requested afterwards, and the order of the processes."""

    change: list[Any]
    kernel: int
    order: list[str]
    door: str


class Kernel(NamedTuple):
    """A source, options with relative paths, and the working directory."""

    source: str
    options: list[str]
    folder: str
    given: dict[str, str]  # for `headers=`
    library: str  # for `link=`; "" for none


def plan(seed: int, count: int, mounts: bool) -> tuple[list[Kernel], list[Step]]:
    """Return a world's kernels, and its steps."""
    chance = random.Random(seed)
    kernels = [_kernel(chance, number) for number in range(4)]
    steps = [_step(chance, kernels, mounts) for _ in range(count)]
    return kernels, steps


def _kernel(chance: random.Random, number: int) -> Kernel:
    options = []
    for folder in chance.sample(FOLDERS, chance.randint(2, 5)):
        spelled = chance.choice(("{root}/%s", "{root}/%s/", "{root}/d2/../%s", "%s", "./%s"))
        options.append("-I" + spelled % folder)
    if chance.random() < 0.2:
        options.append("-include={root}/d0/a.h")
    names = chance.sample(range(len(NAMES)), chance.randint(2, len(NAMES)))
    lines = [_include(chance, name) for name in names]
    if chance.random() < 0.2:
        options.append("-DTEST=__has_include(<b.h>)")
        lines.append("#if TEST\n#include <b.h>\n#endif")
    given = {NAMES[i]: text_of(chance, i) for i in range(len(NAMES)) if chance.random() < 0.3}
    library = chance.choice(LIBRARIES) if number == 3 else ""
    return Kernel(
        "\n".join([f"// {number}", *lines]) + TAIL + (CALLS if library else ""),
        options,
        chance.choice(("", "d1")),
        given if number == 2 else {},
        library,
    )


def _include(chance: random.Random, name: int) -> str:
    quotes = chance.choice(("<%s>", '"%s"'))
    [spelling] = chance.choices(INCLUDES, _USUAL)
    return spelling.format(x=quotes % NAMES[name], n=chance.randrange(10**9))


def text_of(chance: random.Random, name: int) -> str:
    """Return a header: a macro with a number, and possibly includes of other headers."""
    lines = [_include(chance, i) for i in range(name + 1, len(NAMES)) if chance.random() < 0.2]
    number = chance.randrange(1000, 9999)
    lines += [f"#ifndef M{name}", f'#define M{name} "{number}"', "#endif"]
    return "\n".join(lines) + "\n"


def _step(chance: random.Random, kernels: list[Kernel], mounts: bool) -> Step:
    order = ["same", "other", "new"]
    chance.shuffle(order)
    door = chance.choice(("compile", "RawKernel", "RawModule", "install"))
    number = chance.randrange(len(kernels))
    kernel = kernels[number]
    if (kernel.given or kernel.library) and door == "install":
        door = "compile"  # CuPy's own classes accept neither

    def changed() -> list[Any]:
        # Mostly files that the kernel uses.
        folders = [f for f in FOLDERS if any(f in option for option in kernel.options)]
        return _change(chance, folders if chance.random() < 0.8 else list(FOLDERS), mounts)

    change = changed()
    if kernel.library and chance.random() < 0.6:
        change = _change_of_library(chance, kernel.library)
    elif kernel.given and chance.random() < 0.4:
        name = chance.randrange(len(NAMES))
        change = ["given", NAMES[name], text_of(chance, name)]
    elif chance.random() < 0.1:
        several = [changed() for _ in range(chance.randint(2, 5))]
        change = ["race", 4, 1.0, [each for each in several if each[0] != "twice"]]
    if change[0] not in ("twice", "race", "given") and chance.random() < 0.2:
        change = ["race", 1, chance.random(), [change]]
    return Step(change, number, order, door)


def _change_of_library(chance: random.Random, path: str) -> list[Any]:
    number = chance.choice(NUMBERS)
    changes: list[tuple[int, list[Any]]] = [
        (4, ["library", path, number, ""]),
        (4, ["library", path, number, "time"]),
        (3, ["library", path, number, "rename"]),
        (2, ["touch", path]),
        (2, ["move", path, f"{path}.away"]),
        (2, ["move", f"{path}.away", path]),
        (1, ["remove", path]),
    ]
    [change] = chance.choices([c for _, c in changes], [weight for weight, _ in changes])
    return change


def _change(chance: random.Random, looked_at: list[str], mounts: bool) -> list[Any]:
    name = chance.randrange(len(NAMES))
    path = f"{chance.choice(looked_at)}/{NAMES[name]}"
    folders = [chance.choice(looked_at), chance.choice(FOLDERS)]
    text = text_of(chance, name)
    changes: list[tuple[int, list[Any]]] = [
        (8, ["write", path, text]),
        (8, ["number", path, str(chance.randrange(1000, 9999)), ""]),
        (5, ["number", path, str(chance.randrange(1000, 9999)), "time"]),
        (4, ["twice", path, *(str(chance.randrange(1000, 9999)) for _ in range(2))]),
        (4, ["number", path, str(chance.randrange(1000, 9999)), "rename"]),
        (5, ["remove", path]),
        (3, ["folder", path]),
        (3, ["move", path, chance.choice(PATHS)]),
        (3, ["link", path, chance.choice(PATHS)]),
        (2, ["hard link", path, chance.choice(PATHS)]),
        (2, ["swap", *folders]),
        (2, ["move", *folders]),
        (2, ["link", *folders]),
        (1, ["remove", folders[0]]),
        (2, ["copy", *folders]),
        (2, ["touch", path]),
        (2, ["wait", 0.01]),
    ]
    if mounts:
        changes += [(2, ["bind", *folders]), (2, ["mount", folders[0]]), (4, ["unmount", ""])]
        changes += [(3, ["image", folders[0], chance.choice(("1111", "2222"))])]
    [change] = chance.choices([c for _, c in changes], [weight for weight, _ in changes])
    return change
