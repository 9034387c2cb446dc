"""Lists sources that NVRTC rejects, the decisions about them, and whether NVCC confirms the decisions.

One row for each source in tests/messages/source_classes, whose folder is the expected decision: ``nvcc``
(NVRTC's limit), ``flags`` (a flag is missing), ``error`` (the user's mistake). A decision is wrong if NVCC
rejects a source that it was given, if the flags do not help, or if NVCC accepts a source that was called a
mistake. Needs no GPU. `--save` writes benchmarks/results/fallback_classes_cuda12.json, or whichever NVRTC it
was.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks._machine import save
from rtcompile import toolkit
from rtcompile.compilers import nvcc, nvrtc
from rtcompile.messages import diagnostics, fallback
from rtcompile.messages.available import Declared, missing_header
from rtcompile.request import option_table
from rtcompile.request import options as compiler_options
from rtcompile.request.units import Compiled, CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch

CLASSES = Path(__file__).parent.parent / "tests" / "messages" / "source_classes"
Outcome = Compiled | CompileFailure


def comment_value(source: str, what: str) -> str:
    match = re.search(rf"^// {what}: (.*)$", source, re.MULTILINE)
    return match[1] if match else ""


class Source:
    """One source and the compilers to give it to."""

    def __init__(self, path: Path) -> None:
        self.text, self.name = path.read_text(), path.name
        self.given = comment_value(self.text, "options").split()
        self.arch = Arch.parse(comment_value(self.text, "arch") or "sm_90a")
        self.options = compiler_options.parse(self.given).with_defaults()
        self.toolchain = toolkit.current()

    def _unit(self, flags: tuple[str, ...]) -> TranslationUnit:
        return TranslationUnit(self.text, self.name, flags, (), "cubin", self.arch)

    def by_nvrtc(self, *more: str) -> Outcome:
        library = self.toolchain.require_nvrtc()
        search = self.toolchain.search
        flags = option_table.for_nvrtc(
            self.options.adding(*more),
            self.arch,
            "cubin",
            library.version_pair,
            [d.path for d in search],
        )
        return nvrtc.compile(
            self._unit(flags), library, limits=Limits(), pch=False, cache_dir=None, search=search
        )

    def by_nvcc(self) -> Outcome:
        version = self.toolchain.require_nvcc().version_pair
        search = [d.path for d in self.toolchain.nvcc_search]
        flags = option_table.for_nvcc(self.options, self.arch, "cubin", version, search)
        return nvcc.compile(self._unit(flags), self.toolchain, limits=Limits())


def first_error(outcome: Outcome) -> str:
    if isinstance(outcome, Compiled):
        return "compiles"
    return diagnostics.parse(outcome.log)[0].message


def decided(source: Source, failure: CompileFailure) -> fallback.Decision:
    return fallback.decide(
        failure.log,
        source=source.text,
        name=source.name,
        options=source.given,
        package_of=missing_header,
        declared=Declared(source.toolchain),
    )


def row(path: Path) -> dict[str, object]:
    source = Source(path)
    failure = source.by_nvrtc()
    assert isinstance(failure, CompileFailure), f"NVRTC accepts {path}"
    decision = decided(source, failure)
    flags = list(decision.flags)
    proof = source.by_nvrtc(*flags) if flags else source.by_nvcc()
    # As a build does: one flag may show what needs the next.
    while flags and isinstance(proof, CompileFailure):
        more = [flag for flag in decided(source, proof).flags if flag not in flags]
        if not more:
            break
        flags += more
        proof = source.by_nvrtc(*flags)
    return {
        "class": f"{path.parent.name}/{path.stem}",
        "NVRTC": first_error(failure),
        "decision": " ".join((decision.action, *flags)),
        "reason": decision.reason,
        "NVRTC with the flags" if decision.flags else "NVCC": first_error(proof),
        "right": isinstance(proof, Compiled) is (decision.action != "error"),
    }


def main() -> None:
    rows = [row(path) for path in sorted(CLASSES.glob("*/*.cu"))]
    wrong = [each["class"] for each in rows if not each["right"]]
    major, _ = toolkit.current().require_nvrtc().version_pair
    results = {"classes": len(rows), "decided wrongly": wrong, "rows": rows}
    save(f"fallback_classes_cuda{major}", results)


if __name__ == "__main__":
    main()
