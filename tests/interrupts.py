"""Simulates Ctrl-C at each moment at which Python handles signals: after a call, and at a function's begin."""

import dis
import itertools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

_STEPS = ("CALL", "RESUME", "GEN_START", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_after_step: dict[CodeType, frozenset[int]] = {}


def interrupted(act: Callable[[], object], *modules: ModuleType) -> Iterator[BaseException]:
    """Interrupt `act` at each moment in the code of the modules; yield the `KeyboardInterrupt`.

    The exception is yielded with its traceback, which keeps the interrupted frames alive as an
    interactive session does. Ends once `act` returned without an interruption.
    """
    files = {module.__file__ for module in modules}
    number = 0
    while True:
        number += 1
        left = number

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in files:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_lasti in _moments(frame.f_code):
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            act()
        except KeyboardInterrupt as interrupt:
            sys.settrace(before)
            yield interrupt
        else:
            return
        finally:
            sys.settrace(before)


def _moments(code: CodeType) -> frozenset[int]:
    """Return the offsets of instructions before which Python may handle a signal."""
    found = _after_step.get(code)
    if found is None:
        steps = list(dis.get_instructions(code))
        found = _after_step[code] = frozenset(
            step.offset
            for before, step in itertools.pairwise(steps)
            if before.opname.startswith(_STEPS)
        )
    return found
