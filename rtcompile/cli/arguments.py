"""The arguments of every verb of the command, with an example for each."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rtcompile._version import __version__
from rtcompile.cli import author_arguments, parsing, program_arguments

_Add = Callable[[argparse.ArgumentParser], None]

_DESCRIPTION = "Compile CUDA C++, and look at what was compiled. Needs neither a GPU nor CuPy."
_EXIT_CODES = """\
exit codes:
  0  done
  1  the compiler or linker refused, or a check found something
  2  the arguments are wrong; doctor: something does not work
  3  something is not installed, or does not know the architecture
  4  the compiler crashed or took too long
  130  interrupted

Every verb takes --json. Options after -- are the compiler's own.
`rtcompile VERB --help` shows a verb's options and an example.
"""


@dataclass(frozen=True, slots=True)
class _Verb:
    """A verb: its name, the module of `rtcompile.cli` that runs it, and its help."""

    name: str
    module: str
    summary: str
    text: str
    example: str
    add: _Add


def parse(argv: list[str]) -> argparse.Namespace:
    """Read a command line; print and exit for ``--help``, ``--version``, mistakes, or no verb."""
    compiler_options: list[str] = []
    if "--" in argv and argv[0] != "run":  # the words after `run PROGRAM` belong to the program
        at = argv.index("--")
        argv, compiler_options = argv[:at], argv[at + 1 :]
    whole = parser()
    if not argv or argv == ["cache"]:
        (whole.verbs()["cache"] if argv else whole).print_help()
        sys.exit(0)
    given = parsing.read(whole, argv)
    given.compiler_options = compiler_options
    if given.cache_dir:
        os.environ["RTCOMPILE_CACHE_DIR"] = os.path.abspath(given.cache_dir)
    return given


def parser() -> parsing.Parser:
    """Return the parser of the whole command."""
    whole = parsing.Parser(
        prog="rtcompile",
        description=_DESCRIPTION,
        epilog=_EXIT_CODES,
        formatter_class=parsing.Help,
    )
    whole.add_argument("--version", action="version", version=f"rtcompile {__version__}")
    verbs = whole.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in _VERBS:
        sub = verbs.add_parser(
            verb.name,
            help=verb.summary,
            description=f"{verb.summary[0].upper()}{verb.summary[1:]}.\n\n{verb.text}",
            epilog=f"example:\n{verb.example}",
            formatter_class=parsing.Help,
        )
        verb.add(sub)
        _add_common(sub)
        sub.set_defaults(verb=verb.name, module=verb.module)
    return whole


def _add_common(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group("everywhere")
    group.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="whether to use colours; auto: in a terminal, unless NO_COLOR is set",
    )
    group.add_argument(
        "--cache-dir", metavar="DIR", help="use this cache, not the one of RTCOMPILE_CACHE_DIR"
    )


def _add_build(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group("the build")
    group.add_argument(
        "--arch",
        metavar="ARCH[,…]",
        action=parsing.Joined,
        help="sm_90a, or several; without it the architecture of the current device",
    )
    group.add_argument(
        "-n",
        "--name-expression",
        metavar="EXPR",
        action="append",
        default=[],
        help="an instance of a template to compile, as 'f<float>'; may be repeated",
    )
    group.add_argument(
        "-I",
        metavar="DIR",
        action="append",
        default=[],
        dest="include_dirs",
        help="look for headers in DIR; may be repeated",
    )
    group.add_argument(
        "-D",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        dest="macros",
        help="define a macro; may be repeated",
    )
    group.add_argument(
        "--std", metavar="STD", help="the C++ standard: c++17 (the default), c++20, …"
    )
    group.add_argument(
        "--backend",
        choices=("auto", "nvrtc", "nvcc"),
        default="auto",
        help="auto: NVRTC, and NVCC for what NVRTC cannot handle",
    )
    group.add_argument(
        "--target",
        choices=("cubin", "ptx", "ltoir", "fatbin"),
        default="cubin",
        help="the kind of code to make (default: cubin)",
    )
    group.add_argument(
        "--link",
        metavar="FILE",
        action="append",
        default=[],
        help="link FILE too: a source, an object, PTX, LTO-IR, a fatbin or an archive",
    )
    group.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="kill the compiler when it has run so long"
    )
    group.add_argument(
        "--memory-limit", metavar="BYTES", help="kill the compiler when it takes more, as '2G'"
    )


def _add_compile(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("files", metavar="FILE.cu", nargs="+", help="CUDA C++ sources; - reads stdin")
    sub.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="a file for one build (- is stdout), else a folder; without it beside each source",
    )
    sub.add_argument(
        "--watch", action="store_true", help="build again whenever a source or its headers change"
    )
    sub.add_argument(
        "-j",
        "--jobs",
        type=int,
        metavar="N",
        help="compile so many at a time (default: RTCOMPILE_JOBS, or one for each core)",
    )
    _add_build(sub)


def _add_inspect(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "what", metavar="WHAT", help="a cubin, a source (.cu), or a cache entry's key or name"
    )
    sub.add_argument("--kernel", metavar="NAME", help="this kernel only")
    sub.add_argument(
        "--block", type=int, metavar="THREADS", help="compute the occupancy of blocks of this size"
    )
    sub.add_argument(
        "--dynamic-shared",
        type=int,
        default=0,
        metavar="BYTES",
        help="shared memory that a launch adds (shared_mem=)",
    )
    sub.add_argument(
        "--launch-bounds",
        metavar="THREADS[,BLOCKS]",
        help="build a source again with these __launch_bounds__ and show what they change",
    )
    sub.add_argument("--sass", action="store_true", help="show the machine code (needs nvdisasm)")
    sub.add_argument("--ptx", action="store_true", help="show the PTX (of a source)")
    _add_build(sub)


def _add_watch(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="FILE.cu", help="the source that is being edited")
    sub.add_argument(
        "--sass", action="store_true", help="show how the machine code differs (needs nvdisasm)"
    )
    sub.add_argument("--edits", type=int, metavar="N", help="end after so many edits")
    _add_build(sub)


def _add_cache(sub: argparse.ArgumentParser) -> None:
    actions = sub.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, summary in _CACHE_ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=f"{summary}.")
        action.set_defaults(action=name)
        if name == "show":
            action.add_argument(
                "key", metavar="KEY", help="an entry's key, its beginning, or a name"
            )
        elif name == "prune":
            action.add_argument("--size", metavar="BYTES", help="instead of the limit, '500M'")
        elif name == "export":
            action.add_argument("path", metavar="DIR", help="the cache directory to fill")
        elif name == "info":
            action.add_argument(
                "--stats", action="store_true", help="ask the shared stores what they hold, too"
            )
        _add_common(action)


_CACHE_ACTIONS = {
    "info": "place, size, limit, hits, builds",
    "list": "every entry: name, architecture, size, last use",
    "show": "one entry: options, kernels, headers, log",
    "prune": "evict what was not used for longest, down to a size",
    "clear": "remove everything",
    "verify": "read every file; remove the damaged ones",
    "export": "copy all that verifies into another cache directory",
    "push": "copy what other machines can use to the shared stores (RTCOMPILE_REMOTE)",
    "pull": "copy what the shared stores hold into the cache",
    "sync": "pull, then push",
}


def _add_why_miss(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="FILE.cu", help="the source that is compiled again and again")
    _add_build(sub)


def _add_explain(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "what",
        metavar="WHAT",
        nargs="?",
        help="a file with a log or a traceback, a message, or an error's name; without it stdin",
    )
    sub.add_argument("--arch", metavar="ARCH", help="the architecture that was compiled for")


def _add_headers(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", metavar="FILE.cu", help="the source whose headers are looked at")
    sub.add_argument("--all", action="store_true", help="show the whole tree, not its first level")
    sub.add_argument("--why", metavar="HEADER", help="show by which headers this one is included")
    sub.add_argument(
        "--time",
        action="store_true",
        help="measure each of the source's own includes by compiling it alone",
    )
    _add_build(sub)


def _add_profile(sub: argparse.ArgumentParser) -> None:
    author_arguments.add_profile(sub)
    _add_build(sub)


def _add_bundle(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "targets",
        metavar="TARGET",
        nargs="+",
        help="package.module (all that it declares), package.module:name, kernel.cu, or a "
        "record of `rtcompile run`, kernels.json",
    )
    sub.add_argument("-o", "--output", metavar="FILE", help="the bundle to write")
    sub.add_argument(
        "--arch",
        metavar="ARCH[,…]",
        action=parsing.Joined,
        help="sm_80,sm_90a; compute_90 for PTX",
    )
    sub.add_argument(
        "--update", action="store_true", help="keep what the file has for other builds"
    )
    sub.add_argument(
        "-n",
        "--name-expression",
        metavar="EXPR",
        action="append",
        default=[],
        help="of a kernel.cu: an instance of a template, as 'f<float>'; may be repeated",
    )
    author_arguments.add_proof(sub)


def _add_doctor(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--no-probes", action="store_true", help="look only, compile nothing")


def _add_repro(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "folder", metavar="FOLDER", nargs="?", help="a reproducer; without it they are listed"
    )
    sub.add_argument("--run", action="store_true", help="run the compiler on it again")


def _add_completion(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("shell", choices=("bash", "zsh", "tcsh"))


_VERBS = (
    _Verb(
        "doctor",
        "doctor",
        "look at everything a build stands on, try it, say what to install or unset",
        "Compilers, headers, driver, devices, cache, workers; then it compiles one source of each\n"
        "kind, and launches a kernel where there is a device. It works on a broken installation.\n"
        "Exits with 0 if all is well, 1 for warnings, 2 for what does not work.",
        "  rtcompile doctor --json > doctor.json",
        _add_doctor,
    ),
    _Verb(
        "compile",
        "compiling",
        "compile sources for a list of architectures",
        "Compiles as rtcompile.RawModule does, and uses the same cache. Several builds run at a time.\n"
        "Options after -- are the compiler's own, in NVRTC's or nvcc's spelling.",
        "  rtcompile compile gemm.cu --arch sm_80,sm_90a -n 'gemm<float>' -o build/ -- -lineinfo",
        _add_compile,
    ),
    _Verb(
        "run",
        "running",
        "run a program with all of its CuPy kernels through rtcompile",
        "The program needs no change. CuPy's own kernels and those of other libraries are compiled\n"
        "with rtcompile's cache, processes and precompiled headers. At the end one line says how\n"
        "many kernels there were, how many came from the cache, and what that spared.",
        "  rtcompile run --record kernels.json train.py --epochs 3",
        program_arguments.add_run,
    ),
    _Verb(
        "warm",
        "warming",
        "build what a program will ask for, before it does",
        "Builds the requests that `rtcompile run --record` wrote, in parallel, into the cache. Needs\n"
        "no GPU: a CI job, a Docker build or a login node can do it.",
        "  rtcompile warm kernels.json --arch sm_90a,sm_100a",
        program_arguments.add_warm,
    ),
    _Verb(
        "inspect",
        "inspecting",
        "what kernels take: registers, spills, shared memory, occupancy; show SASS and PTX",
        "Looks at a cubin, at a source (which is compiled, or found in the cache), or at an entry of\n"
        "the cache, and names the blocks of highest occupancy. Only for a source it knows how many\n"
        "bytes are spilled. Needs no GPU.",
        "  rtcompile inspect gemm.cu --arch sm_90a --block 256 --sass",
        _add_inspect,
    ),
    _Verb(
        "watch",
        "watching",
        "what each edit of a source changes: registers, spills, shared memory, instructions",
        "Builds the source, and again whenever it or a header that it read is saved, and prints the\n"
        "kernels that take more or less than before. An edit that fails shows its error. With --json\n"
        "each build is one line. Needs no GPU.",
        "  rtcompile watch gemm.cu --arch sm_90a --sass",
        _add_watch,
    ),
    _Verb(
        "cache",
        "caching",
        "look at the cache and keep it small",
        "The cache holds what was compiled, by everything that the result depends on;\n"
        "`rtcompile why-miss` tells why a build is not found in it.",
        "  rtcompile cache prune --size 500M",
        _add_cache,
    ),
    _Verb(
        "why-miss",
        "caching",
        "why a build is not found in the cache",
        "Names the header that changed, or the field in which the nearest entry differs. Compiles\n"
        "nothing. Exits with 0 if it would be found, 1 if not.",
        "  rtcompile why-miss gemm.cu --arch sm_90a",
        _add_why_miss,
    ),
    _Verb(
        "explain",
        "explaining",
        "what a compiler's message means and what to do",
        "Reads logs of NVRTC, nvcc, ptxas, nvlink and nvJitLink, errors of the driver and of launches,\n"
        "and Python tracebacks with one of them at the end, as Jupyter or a terminal shows them.",
        "  nvcc broken.cu 2>&1 | rtcompile explain",
        _add_explain,
    ),
    _Verb(
        "headers",
        "including",
        "what a source includes: from where, because of what, and what it costs",
        "Runs the compiler's front end and shows the headers that it reads, as a tree.",
        "  rtcompile headers gemm.cu --arch sm_90a --time",
        _add_headers,
    ),
    _Verb(
        "profile",
        "profiling",
        "where the time of a build goes: phases, headers, templates",
        "Compiles the source anew with NVRTC, beside the cache and without a precompiled header, and\n"
        "shows what the front end, the optimiser and ptxas took, what each header and each template\n"
        "costs by itself, and what a precompiled header spares.",
        "  rtcompile profile gemm.cu --arch sm_90a --html gemm.html",
        _add_profile,
    ),
    _Verb(
        "clangd",
        "clangd",
        "write what clangd needs to understand kernels, also those in Python files",
        "Writes compile_commands.json for the project's sources, and a file for each kernel that is a\n"
        "string in a Python file, with the same line numbers. Options after -- are the compiler's own.",
        "  rtcompile clangd src --arch sm_90a -- -DTILE=64",
        author_arguments.add_clangd,
    ),
    _Verb(
        "bundle",
        "bundling",
        "compile a package's kernels for its users' devices, into one file",
        "Kernels found in a bundle need no compiler, no headers and no cache; those that are not in\n"
        "it, or were edited since, are compiled as usual. Build hooks for hatchling and setuptools\n"
        "do the same while a wheel is built. `rtcompile bundle verify FILE` reads every byte of one;\n"
        "`rtcompile bundle verify FILE TARGET… --rebuild` compiles it again and compares. If a build\n"
        "cannot be shipped (link= with sources, a header that no -I leads to) nothing is written, and\n"
        "the exit code is 2. With --skip-unshippable the rest is written; the exit code is 0 then, but\n"
        "the bundle names what it lacks, and `rtcompile bundle verify` of it ends with 1.",
        "  rtcompile bundle mykernels --arch sm_80,sm_90a,compute_80 -o mykernels/kernels.rtcb",
        _add_bundle,
    ),
    _Verb(
        "repro",
        "reproducing",
        "show or run what made a compiler crash",
        "Each crash leaves a folder, a reproducer: the source, the headers, the options, the command.",
        "  rtcompile repro nvrtc-crash-0123456789ab --run",
        _add_repro,
    ),
    _Verb(
        "completion",
        "completing",
        "print a shell's completion of this command",
        "Needs shtab: pip install rtcompile[cli].",
        "  rtcompile completion bash > ~/.local/share/bash-completion/completions/rtcompile",
        _add_completion,
    ),
)
