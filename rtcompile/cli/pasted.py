"""Finds the message in pasted text: of a Python traceback the last error's. Pure."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# The last part of a traceback of Python or IPython begins with the error's class, dotted or not.
_RAISED = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Request|NotFound|Arch|Disabled|Crashed|Timeout)(?:: |$)",
    re.MULTILINE,
)
_TRACEBACK = re.compile(
    r"^(?:Traceback \(most recent call last\):|-{40,}$|During handling of the above|"
    r"The above exception was|\s*File \"[^\"]*\", line \d+)",
    re.MULTILINE,
)
# The hint that rtcompile added to the compiler's message; `explain` computes it anew.
_OWN_HINT = re.compile(r"^  hint: .*(?:\n {8}\S.*)*\n?", re.MULTILINE)
_ALSO = re.compile(r"^  also: ", re.MULTILINE)


def message_in(text: str) -> str:
    """Return the message in a pasted traceback, coloured or not; any other text unchanged."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n")
    raised = list(_RAISED.finditer(text))
    if raised and (_TRACEBACK.search(text) or text.lstrip().startswith(raised[0][0])):
        text = text[raised[-1].end() :]
        after = _TRACEBACK.search(text)
        text = text[: after.start()] if after else text
    return _ALSO.sub("", _OWN_HINT.sub("", text))
