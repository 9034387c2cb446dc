"""The arguments of every verb of the command, with an example for each, and their completion in shells."""

from __future__ import annotations

import argparse
import os
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

_Argument = tuple[str, str, dict[str, Any]]


def _arg(spelling: str, text: str, **more: Any) -> _Argument:
    """Return an argument, spelled as in its help: "--all", "-o --output PATH", "files FILE.cu"."""
    return spelling, text, more


_REPEATED: dict[str, Any] = {"action": "append", "default": []}
# --arch a --arch b is the same as --arch a,b
_SEVERAL: dict[str, Any] = {"action": "extend", "type": lambda text: text.split(",")}
_JOBS = _arg(
    "-j --jobs N", "builds at a time (default: RTCOMPILE_JOBS, or one for each core)", type=int
)
_TRUST = _arg("--trust-options", "pass on a record's options that run or write something, -ccbin")
_ONLY = _arg(
    "--only KIND[,…]", "of CuPy's kernels: elementwise, reduction, cub, module", **_SEVERAL
)
_NAMES = _arg(
    "-n --name-expression EXPR",
    "an instance of a template to compile, as 'f<float>'; may be repeated",
    **_REPEATED,
)
_WHY = _arg("--why HEADER", "show by which headers this one is included")

# Each may stand before the verb too: one parser's default would replace what another has read.
_UNSET: dict[str, Any] = {"default": argparse.SUPPRESS}
_EVERYWHERE = (
    _arg("--json", "print one JSON object and nothing else", **_UNSET),
    _arg("-q --quiet", "print errors only", **_UNSET),
    _arg(
        "--color {auto,always,never}",
        "whether to use colours; auto: in a terminal, unless NO_COLOR is set",
        **_UNSET,
    ),
    _arg("--cache-dir DIR", "use this cache, not the one of RTCOMPILE_CACHE_DIR", **_UNSET),
)
_BUILD = (
    _arg(
        "--arch ARCH[,…]",
        "sm_90a, or several; without it the architecture of the current device",
        **_SEVERAL,
    ),
    _NAMES,
    _arg("-I DIR", "look for headers in DIR; may be repeated", dest="include_dirs", **_REPEATED),
    _arg("-D NAME[=VALUE]", "define a macro; may be repeated", dest="macros", **_REPEATED),
    _arg("--std STD", "the C++ standard: c++17 (the default), c++20, …"),
    _arg(
        "--backend {auto,nvrtc,nvcc}",
        "auto: NVRTC, and NVCC for what NVRTC cannot handle",
        default="auto",
    ),
    _arg("--target {cubin,ptx,ltoir,object,fatbin}", "the kind of code to make", default="cubin"),
    _arg(
        "--link FILE",
        "link FILE too: a source, an object, PTX, LTO-IR, a fatbin or an archive",
        **_REPEATED,
    ),
    _arg("--timeout SECONDS", "kill the compiler after this time", type=float),
    _arg("--memory-limit BYTES", "kill the compiler when it takes more, as '2G'"),
)
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
    "info": [_arg("--stats", "ask the shared stores what they hold, too")],
    "show": [_arg("key KEY", "an entry's key, its beginning, or a name")],
    "prune": [_arg("--size BYTES", "instead of the limit, '500M'")],
    "export": [_arg("path DIR", "the cache directory to fill")],
    "pull": [
        _arg("records RECORD", "only what rtcompile run --record wrote", nargs="*"),
        _arg("--arch ARCH[,…]", "for these devices instead of the recorded one", **_SEVERAL),
    ],
    "key": [
        _arg("what {new,show,rotate}", "write a new file; show fingerprints; sign by a new key"),
        _arg("path FILE", "instead of RTCOMPILE_REMOTE_KEY_FILE", nargs="?"),
        _arg("--pair", "Ed25519: a private key for who builds, FILE.pub for who reads"),
    ],
    "metrics": [
        _arg("-o --output FILE", "write it there, as for node_exporter's textfile collector"),
        _arg("--fleet", "the counts of all nodes, which Redis keeps"),
    ],
}


class _Verb(NamedTuple):
    """A verb: the function of `rtcompile.cli` that runs it, its help, and its arguments."""

    name: str
    function: str  # "module.function"
    summary: str
    text: str
    example: str
    arguments: tuple[_Argument, ...] = ()
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
        (_arg("--no-probes", "look only, compile nothing"),),
    ),
    _Verb(
        "compile",
        "compiling.run",
        "compile sources for a list of architectures",
        """Compiles as rtcompile.RawModule does, and uses the same cache. Several builds run at a
        time. Options after -- are the compiler's own, in NVRTC's or nvcc's spelling.""",
        "rtcompile compile gemm.cu --arch sm_80,sm_90a -n 'gemm<float>' -o build/ -- -lineinfo",
        (
            _arg("files FILE.cu", "CUDA C++ sources; - reads stdin", nargs="+"),
            _arg(
                "-o --output PATH",
                "a file for one build (- is stdout), else a folder; without it beside each source",
            ),
            _arg("--watch", "build again whenever a source or its headers change"),
            _JOBS,
        ),
        builds=True,
    ),
    _Verb(
        "run",
        "running.run",
        "run a program with all of its CuPy kernels through rtcompile",
        """The program needs no change. CuPy's own kernels and those of other libraries are compiled
        with rtcompile's cache, processes and precompiled headers. At the end one line says how
        many kernels there were, how many came from the cache, and what that spared.""",
        "rtcompile run --record kernels.json train.py --epochs 3",
        (
            _arg("--record FILE", "write every request of the run, for rtcompile warm"),
            _arg("--check", "forbid compiling; exit with 1 if something had to be compiled"),
            _arg("--report", "show a line per kernel at the end"),
            _arg(
                "-m ...",
                "MODULE and its arguments: run a module, as python -m",
                nargs=argparse.REMAINDER,
                dest="module_and_arguments",
            ),
            _arg("program SCRIPT", "the script and its arguments", nargs=argparse.REMAINDER),
        ),
    ),
    _Verb(
        "warm",
        "running.warm",
        "build what a program will need, ahead of time",
        """Builds what `rtcompile run --record` wrote, in parallel, into the cache. Needs no GPU.
        `rtcompile warm cupy` builds what everyday programs use of CuPy's own kernels.""",
        "rtcompile warm cupy kernels.json --arch sm_90a,sm_100a",
        (
            _arg("records RECORD", "what rtcompile run --record wrote, or cupy", nargs="+"),
            _arg("--arch ARCH[,…]", "for these devices instead of the recorded one", **_SEVERAL),
            _ONLY,
            _TRUST,
            _JOBS,
        ),
    ),
    _Verb(
        "inspect",
        "inspecting.run",
        "resources of kernels: registers, spills, shared memory, occupancy; show SASS and PTX",
        """Looks at a cubin, at a source (which is compiled, or found in the cache), or at an entry of
        the cache, and names the blocks of highest occupancy. Bytes spilled are known only for
        a source. Needs no GPU.""",
        "rtcompile inspect gemm.cu --arch sm_90a --block 256 --sass",
        (
            _arg("what WHAT", "a cubin, a source (.cu), or a cache entry's key or name"),
            _arg("--kernel NAME", "this kernel only"),
            _arg("--block THREADS", "compute the occupancy of blocks of this size", type=int),
            _arg("--dynamic-shared BYTES", "what shared_mem= adds", type=int, default=0),
            _arg("--launch-bounds THREADS[,BLOCKS]", "show what these bounds change in a source"),
            _arg("--sass", "show the machine code (needs nvdisasm)"),
            _arg("--ptx", "show the PTX (of a source)"),
        ),
        builds=True,
    ),
    _Verb(
        "watch",
        "inspecting.watch",
        "what each edit of a source changes: registers, spills, shared memory, instructions",
        """Builds the source, and again whenever it or a header that it read is saved, and prints the
        kernels that take more or less than before. An edit that fails shows its error. With --json
        each build is one line. Needs no GPU.""",
        "rtcompile watch gemm.cu --arch sm_90a --sass",
        (
            _arg("file FILE.cu", "the source that is being edited"),
            _arg("--sass", "show how the machine code differs (needs nvdisasm)"),
            _arg("--edits N", "end after this many edits", type=int),
        ),
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
        (_arg("file FILE.cu", "the source that is compiled again although it should be cached"),),
        builds=True,
    ),
    _Verb(
        "explain",
        "explaining.run",
        "what a compiler's message means and what to do",
        """Reads logs of NVRTC, nvcc, ptxas, nvlink and nvJitLink, errors of the driver and of launches,
        and Python tracebacks with one of them at the end, as Jupyter or a terminal shows them.""",
        "nvcc broken.cu 2>&1 | rtcompile explain",
        (
            _arg(
                "what WHAT",
                "a file with a log or a traceback, a message, or an error's name; without it stdin",
                nargs="?",
            ),
            _arg("--arch ARCH", "the architecture that was compiled for"),
        ),
    ),
    _Verb(
        "headers",
        "developing.headers",
        "the headers that a source includes, why, and what each costs",
        "Profiles the source, and shows the headers that it includes, as `profile --tree` does.",
        "rtcompile headers gemm.cu --arch sm_90a",
        (
            _arg("file FILE.cu", "the source whose headers are shown"),
            _arg("--all", "show the whole tree, not its first level"),
            _WHY,
            _arg("--time", "no effect: the times are always shown"),
        ),
        builds=True,
    ),
    _Verb(
        "profile",
        "developing.profile_kernels",
        "where the time of a build goes: phases, headers, templates",
        """Compiles the source anew with NVRTC, beside the cache and without a precompiled header, and
        shows what the front end, the optimiser and ptxas took, what each header and each template
        costs by itself, and what a precompiled header spares.""",
        "rtcompile profile gemm.cu --arch sm_90a --trace gemm.json",
        (
            _arg("file FILE.cu", "the source to compile; - reads stdin"),
            _arg("--trace FILE", "write a Chrome trace, for Perfetto and speedscope"),
            _arg("--top N", "rows of a table", type=int, default=15),
            _arg("--tree LEVELS", "show which header includes which", type=int, default=0),
            _WHY,
        ),
        builds=True,
    ),
    _Verb(
        "clangd",
        "developing.write_database",
        "write what clangd needs to understand kernels, also those in Python files",
        """Writes compile_commands.json for the project's sources, and a file for each kernel that is a
        string in a Python file, with the same line numbers. Options after -- are the compiler's own.""",
        "rtcompile clangd src --arch sm_90a -- -DTILE=64",
        (
            _arg("paths PATH", "sources, Python files, folders; without it ROOT", nargs="*"),
            _arg("--root ROOT", "the project's folder (default: this one)", default="."),
            _arg("--arch ARCH", "whose code is active (default: sm_80)"),
        ),
    ),
    _Verb(
        "bundle",
        "bundling.run",
        "compile a package's kernels for its users' devices, into one file",
        """Kernels found in a bundle need no compiler, no headers and no cache; those that are not in
        it, or were edited since, are compiled as usual. Build hooks for hatchling and setuptools
        do the same while a wheel is built. `rtcompile bundle verify FILE` reads every byte of one;
        `rtcompile bundle verify FILE TARGET… --rebuild` compiles it again and compares. If a build
        cannot be bundled (link= with sources, a header that no -I leads to) nothing is written, and
        the exit code is 2. With --skip-unbundleable the rest is written; the exit code is 0 then, but
        the bundle names what it lacks, and `rtcompile bundle verify` of it ends with 1.""",
        "rtcompile bundle mykernels --arch sm_80,sm_90a,compute_80 -o mykernels/kernels.rtcb",
        (
            _arg(
                "targets TARGET",
                "package.module (all that it declares), package.module:name, kernel.cu, or a "
                "record of `rtcompile run`, kernels.json",
                nargs="*",
            ),
            _arg("--cupy", "what everyday programs use of CuPy's own kernels"),
            _ONLY,
            _TRUST,
            _arg("-o --output FILE", "the bundle to write"),
            _arg("--arch ARCH[,…]", "sm_80,sm_90a; compute_90 for PTX", **_SEVERAL),
            _arg("--update", "keep the file's other builds"),
            _NAMES,
            _arg(
                "--skip-unbundleable --skip-unshippable",
                "write the rest if some builds cannot be bundled; --list and verify name what is left out",
            ),
            _arg("--list", "show what is in a bundle: TARGET"),
            _arg("--matrix", "show what each GPU gets (cubin, PTX, nothing), and the least driver"),
            _arg("--provenance", "print as JSON each build's compiler, options, header digests"),
            _arg("--rebuild", "with verify: compile again, compare byte by byte"),
        ),
    ),
    _Verb(
        "repro",
        "explaining.reproducers",
        "show or run the reproducer of a compiler's crash",
        "Each crash leaves a folder, a reproducer: the source, the headers, the options, the command.",
        "rtcompile repro nvrtc-crash-0123456789ab --run",
        (
            _arg("folder FOLDER", "a reproducer; without it they are listed", nargs="?"),
            _arg("--run", "run its run.sh, which may do anything: only of folders that you trust"),
        ),
    ),
    _Verb(
        "completion",
        "completion.run",
        "print a shell's completion of this command",
        "For bash, zsh and tcsh it needs shtab: pip install rtcompile[cli].",
        "rtcompile completion bash > ~/.local/share/bash-completion/completions/rtcompile",
        (_arg("shell {bash,zsh,tcsh,fish}", "the shell"),),
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
    whole.set_defaults(json=False, quiet=False, color="auto", cache_dir=None)
    _add(((spelling, argparse.SUPPRESS, more) for spelling, _, more in _EVERYWHERE), whole)
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
                _add(_OF_CACHE_ACTION.get(name, ()), action)
                _add(_EVERYWHERE, action.add_argument_group("everywhere"))
        if verb.builds:
            _add(_BUILD, sub.add_argument_group("the build"))
        _add(_EVERYWHERE, sub.add_argument_group("everywhere"))
        sub.set_defaults(verb=verb.name, function=verb.function)
    return whole


def _add(arguments: Iterable[_Argument], to: argparse._ActionsContainer) -> None:
    for spelling, text, more in arguments:
        *names, last = spelling.split()
        if last.startswith("-"):
            to.add_argument(*names, last, action="store_true", help=text, **more)
        else:
            value = {"choices": last[1:-1].split(",")} if last[0] == "{" else {"metavar": last}
            to.add_argument(*names, help=text, **value, **more)


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
