"""The header that declares each name, read from ``standard_headers.ini``."""

from __future__ import annotations

import configparser
import os


def _read() -> tuple[dict[str, str], ...]:
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign] # keep the case of headers
    folder = os.path.dirname(__file__)
    parser.read(os.path.join(folder, "standard_headers.ini"), encoding="utf-8")
    return tuple(
        {name: header for header, names in parser[section].items() for name in names.split()}
        for section in ("std", "global", "declared")
    )


# Name to header: for namespace std, for the global namespace, and also for names that NVCC does not know.
STD, GLOBAL, _MORE = _read()
DECLARED = {**GLOBAL, **_MORE}
