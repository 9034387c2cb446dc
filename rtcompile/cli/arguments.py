"""The arguments of every verb of the command, with an example for each, and their completion in shells."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from rtcompile._version import __version__
from rtcompile.errors import InvalidRequest

_EXIT_CODES = """\
exit codes:
  0  done
  1  the compiler or linker reported an error, or a check found something
  2  the arguments are wrong; doctor: something does not work
  3  something is not installed, or does not know the architecture
  4  the compiler crashed or took too long
  130  interrupted

Every verb takes --json. Options after -- are the compiler's own. `rtcompile VERB --help` shows a verb's options and an example.
"""

# Tables of arguments: a spelling, and behind two blanks its help, which may go on in lines that are
# indented more. A spelling's last word says how many values there are, as argparse's nargs; with "…" the
# option may be repeated. Further parameters of `add_argument` are here.
_MORE: dict[str, dict[str, Any]] = {
    "-I": {"dest": "include_dirs"},
    "-D": {"dest": "macros"},
    "-m": {"dest": "module_and_arguments"},
    "--backend": {"default": "auto"},
    "--target": {"default": "cubin"},
    "--timeout": {"type": float},
    "--dynamic-shared": {"type": int, "default": 0},
    "--block": {"type": int},
    "--edits": {"type": int},
    "--top": {"type": int, "default": 15},
    "--tree": {"type": int, "default": 0},
    "-j": {"type": int},
    "--root": {"default": "."},
}
_BUILD = """
--arch ARCH[,…]  sm_90a, or several; without it the architecture of the current device
-n --name-expression EXPR …  an instance of a template to compile, as 'f<float>'; may be repeated
-I DIR …  look for headers in DIR; may be repeated
-D NAME[=VALUE] …  define a macro; may be repeated
--std STD  the C++ standard: c++17 (the default), c++20, …
--backend {auto,nvrtc,nvcc}  auto: NVRTC, and NVCC for what NVRTC cannot handle
--target {cubin,ptx,ltoir,object,fatbin}  the kind of code to make
--link FILE …  link FILE too: a source, an object, PTX, LTO-IR, a fatbin or an archive
--timeout SECONDS  kill the compiler after this time
--memory-limit BYTES  kill the compiler when it takes more, as '2G'
"""
_EVERYWHERE = """
--json  print one JSON object and nothing else
-q --quiet  print errors only
--color {auto,always,never}  whether to use colours; auto: in a terminal, unless NO_COLOR is set
--cache-dir DIR  use this cache, not the one of RTCOMPILE_CACHE_DIR
"""
CACHE_ACTIONS = {
    "info": "path, size, limit, hits, builds",
    "list": "every entry: name, architecture, size, last use",
    "show": "one entry: options, kernels, headers, log",
    "prune": "evict the least recently used entries, down to a size",
    "clear": "remove everything",
    "verify": "read every file; remove the damaged ones",
    "export": "copy everything that verifies into another cache directory",
    "push": "copy what other machines can use to the shared stores (RTCOMPILE_REMOTE)",
    "pull": "copy what the shared stores hold into the cache",
    "sync": "pull, then push",
    "key": "make, show or replace the key that signs entries of shared stores",
    "metrics": "what shared stores cost and spared, as OpenMetrics text",
}
_OF_CACHE_ACTION = {
    "info": """
        --stats  query the shared stores for what they contain, too
    """,
    "show": """
        key KEY  an entry's key, its beginning, or a name
    """,
    "prune": """
        --size BYTES  instead of the limit, '500M'
    """,
    "export": """
        path DIR  the cache directory to fill
    """,
    "pull": """
        records RECORD *  only what rtcompile run --record wrote
        --arch ARCH[,…]  for these devices instead of the recorded one
    """,
    "key": """
        what {new,show,rotate}  write a new file; show fingerprints; sign by a new key
        path FILE ?  instead of RTCOMPILE_REMOTE_KEY_FILE
        --pair  Ed25519: a private key for who builds, FILE.pub for who reads
    """,
    "metrics": """
        -o --output FILE  write it there, as for node_exporter's textfile collector
        --fleet  the counts of all nodes, which Redis keeps
    """,
}


class _Verb(NamedTuple):
    """A verb: the function of `rtcompile.cli` that runs it, its help, and its arguments."""

    name: str
    function: str  # "module.function"
    summary: str
    text: str
    example: str
    arguments: str = ""
    builds: bool = False  # whether it takes the arguments of a build, too


VERBS = (
    _Verb(
        "doctor",
        "explaining.doctor",
        "check everything that a build needs, and tell what to install or unset",
        """Compilers, headers, driver, devices, cache, workers; then it compiles one source of each
        kind, and launches a kernel where there is a device. It works on a broken installation.
        Exits with 0 if all is well, 1 for warnings, 2 for what does not work.""",
        "rtcompile doctor --json > doctor.json",
        """
        --no-probes  look only, compile nothing
        """,
    ),
    _Verb(
        "compile",
        "compiling.run",
        "compile sources for a list of architectures",
        """Compiles as rtcompile.RawModule does, and uses the same cache. Several builds run at a
        time. Options after -- are the compiler's own, in NVRTC's or nvcc's spelling.""",
        "rtcompile compile gemm.cu --arch sm_80,sm_90a -n 'gemm<float>' -o build/ -- -lineinfo",
        """
        files FILE.cu +  CUDA C++ sources; - reads stdin
        -o --output PATH  a file for one build (- is stdout), else a folder; without it beside
            each source
        -j --jobs N  builds at a time (default: RTCOMPILE_JOBS, or one for each core)
        """,
        builds=True,
    ),
    _Verb(
        "run",
        "running.run",
        "run a program with all of its CuPy kernels through rtcompile",
        """The program needs no change. CuPy's own kernels and those of other libraries are
        compiled with rtcompile's cache, processes and precompiled headers. At the end one line
        says how many kernels there were, how many came from the cache, and what that spared.""",
        "rtcompile run --record kernels.json train.py --epochs 3",
        """
        --record FILE  write every request of the run, for rtcompile warm
        --check  forbid compiling; exit with 1 if something had to be compiled
        --report  show a line per kernel at the end
        -m ... ...  MODULE and its arguments: run a module, as python -m
        program SCRIPT ...  the script and its arguments
        """,
    ),
    _Verb(
        "warm",
        "running.warm",
        "build what a program will need, ahead of time",
        """Builds what `rtcompile run --record` wrote, in parallel, into the cache. Needs no GPU.
        `rtcompile warm cupy` builds what everyday programs use of CuPy's own kernels.""",
        "rtcompile warm cupy kernels.json --arch sm_90a,sm_100a",
        """
        records RECORD +  what rtcompile run --record wrote, or cupy
        --arch ARCH[,…]  for these devices instead of the recorded one
        --only KIND[,…]  of CuPy's kernels: elementwise, reduction, cub, module
        --trust-options  pass on a record's options that run or write something, -ccbin
        -j --jobs N  builds at a time (default: RTCOMPILE_JOBS, or one for each core)
        """,
    ),
    _Verb(
        "inspect",
        "inspecting.run",
        "resources of kernels: registers, spills, shared memory, occupancy; show SASS and PTX",
        """Looks at a cubin, at a source (which is compiled, or found in the cache), or at an entry
        of the cache, and names the blocks of highest occupancy. Bytes spilled are known only
        for a source. Needs no GPU.""",
        "rtcompile inspect gemm.cu --arch sm_90a --block 256 --sass",
        """
        what WHAT  a cubin, a source (.cu), or a cache entry's key or name
        --kernel NAME  this kernel only
        --block THREADS  compute the occupancy of blocks of this size
        --dynamic-shared BYTES  what shared_mem= adds
        --launch-bounds THREADS[,BLOCKS]  show what these bounds change in a source
        --sass  show the machine code (needs nvdisasm)
        --ptx  show the PTX (of a source)
        """,
        builds=True,
    ),
    _Verb(
        "watch",
        "inspecting.watch",
        "what each edit of a source changes: registers, spills, shared memory, instructions",
        """Builds the source, and again whenever it or a header that it read is saved, and prints
        the kernels that take more or less than before. An edit that fails shows its error. With
        --json each build is one line. Needs no GPU.""",
        "rtcompile watch gemm.cu --arch sm_90a",
        """
        file FILE.cu  the source that is being edited
        --edits N  end after this many edits
        """,
        builds=True,
    ),
    _Verb(
        "cache",
        "caching.run",
        "look at the cache and keep it small",
        """The cache contains compiled code, under keys of everything that the code depends on;
        `rtcompile why-miss` tells why a build is not found in it.""",
        "rtcompile cache prune --size 500M",
    ),
    _Verb(
        "why-miss",
        "caching.why_miss",
        "why a build is not found in the cache",
        """Names the header that changed, or the field in which the nearest entry differs. Compiles
        nothing. Exits with 0 if it would be found, 1 if not.""",
        "rtcompile why-miss gemm.cu --arch sm_90a",
        """
        file FILE.cu  the source that is compiled again although it should be cached
        """,
        builds=True,
    ),
    _Verb(
        "explain",
        "explaining.run",
        "what a compiler's message means and what to do",
        """Reads logs of NVRTC, nvcc, ptxas, nvlink and nvJitLink, errors of the driver and of
        launches, and Python tracebacks with one of them at the end, as Jupyter or a terminal
        shows them.""",
        "nvcc broken.cu 2>&1 | rtcompile explain",
        """
        what WHAT ?  a file with a log or a traceback, a message, or an error's name; without it
            stdin
        --arch ARCH  the architecture that was compiled for
        """,
    ),
    _Verb(
        "profile",
        "inspecting.profile_kernels",
        "where the time of a build goes: phases, headers, templates",
        """Compiles the source anew with NVRTC, beside the cache and without a precompiled header,
        and shows what the front end, the optimiser and ptxas took, what each header and each
        template costs by itself, and what a precompiled header spares.""",
        "rtcompile profile gemm.cu --arch sm_90a --trace gemm.json",
        """
        file FILE.cu  the source to compile; - reads stdin
        --trace FILE  write a Chrome trace, for Perfetto and speedscope
        --top N  rows of a table
        --tree LEVELS  show which header includes which
        --why HEADER  show by which headers this one is included
        """,
        builds=True,
    ),
    _Verb(
        "clangd",
        "inspecting.write_database",
        "write what clangd needs to understand kernels, also those in Python files",
        """Writes compile_commands.json for the project's sources, and a file for each kernel that
        is a string in a Python file, with the same line numbers. Options after -- are the
        compiler's own.""",
        "rtcompile clangd src --arch sm_90a -- -DTILE=64",
        """
        paths PATH *  sources, Python files, folders; without it ROOT
        --root ROOT  the project's folder (default: this one)
        --arch ARCH  whose code is active (default: sm_80)
        """,
    ),
    _Verb(
        "bundle",
        "bundling.run",
        "compile a package's kernels for its users' devices, into one file",
        """Kernels found in a bundle need no compiler, no headers and no cache; those that are not
        in it, or were edited since, are compiled as usual. Build hooks for hatchling and
        setuptools do the same while a wheel is built. `rtcompile bundle verify FILE` reads
        every byte of one; with TARGET… it also finds their builds in it where nothing can be
        compiled, and with --rebuild it compiles them again and compares. If a build cannot be
        bundled (link= with sources, a header that no -I leads to) nothing is written, and the
        exit code is 2.""",
        "rtcompile bundle mykernels --arch sm_80,sm_90a,compute_80 -o mykernels/kernels.rtcb",
        """
        targets TARGET *  package.module (all that it declares), package.module:name, kernel.cu,
            or a record of `rtcompile run`, kernels.json
        --cupy  what everyday programs use of CuPy's own kernels
        --only KIND[,…]  of CuPy's kernels: elementwise, reduction, cub, module
        --trust-options  pass on a record's options that run or write something, -ccbin
        -o --output FILE  the bundle to write
        --arch ARCH[,…]  sm_80,sm_90a; compute_90 for PTX
        --update  keep the file's other builds
        -n --name-expression EXPR …  an instance of a template to compile, as 'f<float>'; may be
            repeated
        --skip-unbundleable  write the rest if some builds cannot be bundled, and warn of them
        --list  show what is in a bundle: TARGET
        --matrix  show what each GPU gets (cubin, PTX, nothing), and the least driver
        --provenance  print as JSON each build's compiler, options, header digests
        --rebuild  with verify: compile again, compare byte by byte
        """,
    ),
    _Verb(
        "repro",
        "explaining.reproducers",
        "show the reproducer of a compiler's crash",
        """Each crash leaves a folder, a reproducer: the source, the headers, the options, and
        run.sh, which compiles it again.""",
        "rtcompile repro nvrtc-crash-0123456789ab",
        """
        folder FOLDER ?  a reproducer; without it they are listed
        """,
    ),
    _Verb(
        "completion",
        "inspecting.completion",
        "print a shell's completion of this command",
        "For bash, zsh and tcsh it needs shtab: pip install rtcompile[cli].",
        "rtcompile completion bash > ~/.local/share/bash-completion/completions/rtcompile",
        """
        shell {bash,zsh,tcsh}  the shell
        """,
    ),
)


def parse(argv: list[str]) -> argparse.Namespace:
    """Read a command line; print and exit for ``--help``, ``--version``, mistakes, or no verb."""
    compiler_options: list[str] = []
    if "--" in argv and argv[0] != "run":  # the words after `run PROGRAM` belong to the program
        argv, compiler_options = argv[: (at := argv.index("--"))], argv[at + 1 :]
    whole = parser()
    if argv[:1] != ["run"] and any(word[:2] == "--" and word[-3:] == "=--" for word in argv):
        whole.error("'--' is no value of an option")  # argparse makes a list of it
    if argv[:1] == ["help"]:  # `rtcompile help VERB`
        argv = [*argv[1:2], "--help"]
    if argv in ([], ["cache"]):
        argv = [*argv, "--help"]
    given, unknown = whole.parse_known_args(argv)
    sub = whole.verbs()[given.verb] if "verb" in given else whole
    if unknown or sub is whole:
        sub.error(_unknown(unknown[0], sub) if unknown else "no verb is given")
    given.compiler_options = compiler_options
    if given.cache_dir:
        os.environ["RTCOMPILE_CACHE_DIR"] = os.path.abspath(given.cache_dir)
    return given


def parser() -> Parser:
    """Return the parser of the whole command."""
    description = "Compile CUDA C++, and inspect the result. Needs neither a GPU nor CuPy."
    whole = Parser(prog="rtcompile", description=description, epilog=_EXIT_CODES)
    whole.add_argument("-V", "--version", action="version", version=f"rtcompile {__version__}")
    unset = {"default": argparse.SUPPRESS}
    whole.set_defaults(json=False, quiet=False, color="auto", cache_dir=None)
    # Each may stand before the verb too: one parser's default would replace what another has read.
    _add(_EVERYWHERE, whole, help=argparse.SUPPRESS, **unset)
    verbs = whole.add_subparsers(title="verbs", metavar="VERB")
    for verb in VERBS:
        sub = verbs.add_parser(
            verb.name,
            help=verb.summary,
            description=f"{verb.summary[0].upper()}{verb.summary[1:]}.\n\n{' '.join(verb.text.split())}",
            epilog=f"example:\n  {verb.example}",
        )
        _add(verb.arguments, sub)
        if verb.name == "cache":
            actions = sub.add_subparsers(title="actions", metavar="ACTION", required=True)
            for name, summary in CACHE_ACTIONS.items():
                action = actions.add_parser(name, help=summary, description=f"{summary}.")
                action.set_defaults(action=name)
                _add(_OF_CACHE_ACTION.get(name, ""), action)
                _add(_EVERYWHERE, action.add_argument_group("everywhere"), **unset)
        if verb.builds:
            _add(_BUILD, sub.add_argument_group("the build"))
        _add(_EVERYWHERE, sub.add_argument_group("everywhere"), **unset)
        sub.set_defaults(verb=verb.name, function=verb.function)
    return whole


def _add(table: str, to: argparse._ActionsContainer, **common: Any) -> None:
    """Add the arguments of a table."""
    for entry in re.split(r"\n(?! )", textwrap.dedent(table).strip()) if table else ():
        spelling, _, text = entry.partition("  ")
        *names, last = spelling.split()
        more = {"help": " ".join(text.split()), **_MORE.get(names[0] if names else last, {})}
        if last.startswith("-"):
            to.add_argument(*names, last, action="store_true", **{**more, **common})
            continue
        if last == "…":
            last = names.pop()
            more.update(action="append", default=[])
        elif last in ("+", "*", "?", "..."):
            more["nargs"], last = last, names.pop()
        elif last.endswith("[,…]"):  # --arch a --arch b is the same as --arch a,b
            more.update(action="extend", type=lambda text: text.split(","))
        value = {"choices": last[1:-1].split(",")} if last[0] == "{" else {"metavar": last}
        to.add_argument(*names, **{**value, **more, **common})


class _Help(argparse.HelpFormatter):
    """Wraps each line of the texts to the terminal, except lines that begin with two blanks."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  # argparse's signature
        return "\n".join(
            line if line.startswith("  ") else textwrap.fill(line, width, break_on_hyphens=False)
            for line in text.split("\n")
        )


class Parser(argparse.ArgumentParser):
    """A parser whose errors have two lines: the mistake with a suggestion, and where to find help."""

    def __init__(self, **more: Any) -> None:
        # Abbreviations are errors, since a new option would change their meaning.
        super().__init__(allow_abbrev=False, formatter_class=_Help, **more)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what, meant = f"is not one of {', '.join(known)}", _nearest(str(value), known)
        if action.metavar == "VERB":
            what, meant = "is not a verb", meant or f"; it is one of {', '.join(known)}"
            if value.endswith((".cu", ".cuh")):
                what, meant = (
                    "is a file, not a verb",
                    f"; did you mean `{self.prog} compile {value}`?",
                )
        raise argparse.ArgumentError(action, f"{value!r} {what}{meant}")

    def verbs(self) -> dict[str, argparse.ArgumentParser]:
        """Return the parsers of the verbs by their names."""
        return next(a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help shows what it takes\n")


def _unknown(word: str, sub: argparse.ArgumentParser) -> str:
    """Return what is wrong with a word that `sub` does not know, and what was probably meant."""
    if not word.startswith("-"):
        return f"{word!r} is one argument too many"
    spellings = list(sub._option_string_actions)
    name = word.partition("=")[0]
    message = f"there is no option {name}"
    if "--backend" not in spellings:
        return message + _nearest(name, spellings)
    if f"-{name}" in spellings:  # nvcc's -arch and -std
        return f"{message}; did you mean -{name}?"
    from rtcompile.request import options

    try:
        is_compilers = not options.parse([word]).unknown
    except InvalidRequest:
        is_compilers = True
    meant = "" if is_compilers else _nearest(name, spellings)
    return f"{message}{meant or '.'} Options of the compiler go after --: `{sub.prog} … -- {word}`"


def _nearest(word: str, known: Iterable[str]) -> str:
    import difflib  # only for a mistake

    found = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {found[0]}?" if found else ""
