"""Runs functions as another user, which only root can do."""

import ast
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any


def as_user(
    user: int,
    act: Callable[[], object],
    *,
    groups: Sequence[int] = (),
    umask: int | None = None,
    seconds: int = 20,
) -> Any:
    """Return the plain value of `act`, run as another user in a child; fail if it fails."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads that other tests left
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(seconds)
            os.setgroups(list(groups))
            os.setgid(user)
            os.setuid(user)
            if umask is not None:
                os.umask(umask)
            warnings.simplefilter("ignore")
            os.write(writing, repr(act()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        output = pipe.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return ast.literal_eval(output) if output else None
