"""`rtcompile.named.NamedTuple` behaves as `typing.NamedTuple`, and `computed_once` as `cached_property` without a lock."""

import inspect
import os
import pickle
import re
import signal
import threading
import typing
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.named import NamedTuple, computed_once
from tests.processes import python


def made(name, base):
    """Return a class of two fields, of which one has a default."""
    text = f"""class {name}(base):
        "Two fields."
        first: str
        second: int = 2
        both = property(lambda self: f"{{self.first}}{{self.second}}")
        __str__ = lambda self: self.both"""
    namespace = {"base": base, "__name__": __name__}
    exec(text, namespace)
    return namespace[name]


Ours, Theirs = made("Ours", NamedTuple), made("Theirs", typing.NamedTuple)


def matched(cls: Any) -> object:
    match cls("a", 3):
        case (first, second):
            return first, second
    return None


def parameters(cls: Any) -> object:
    found = inspect.signature(cls).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda cls: cls("a"), id="a default"),
        pytest.param(lambda cls: cls("a", 3), id="in order"),
        pytest.param(lambda cls: cls(second=3, first="a"), id="by name"),
        pytest.param(lambda cls: cls("a", second=3), id="both"),
        pytest.param(lambda cls: cls("a").both, id="a property"),
        pytest.param(lambda cls: str(cls("a")), id="a method"),
        pytest.param(lambda cls: cls("a")._replace(second=4), id="replaced"),
        pytest.param(lambda cls: cls("a")._asdict(), id="as a dict"),
        pytest.param(lambda cls: cls._fields, id="its fields"),
        pytest.param(lambda cls: cls._field_defaults, id="its defaults"),
        pytest.param(lambda cls: cls.__match_args__, id="what patterns match"),
        pytest.param(lambda cls: repr(cls("a")).replace(cls.__name__, ""), id="as text"),
        pytest.param(lambda cls: pickle.loads(pickle.dumps(cls("a", 7))), id="pickled"),
        pytest.param(lambda cls: hash(cls("a")), id="hashed"),
        pytest.param(lambda cls: cls("a") == ("a", 2), id="equal to a tuple"),
        pytest.param(lambda cls: (cls.__doc__, cls.__module__), id="its docstring"),
        pytest.param(matched, id="matched"),
        pytest.param(parameters, id="its signature"),
    ],
)
def test_it_is_as_of_typing(act):
    assert act(Ours) == act(Theirs)
    assert type(act(Ours)) in (type(act(Theirs)), Ours)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda cls: cls(), id="one is missing"),
        pytest.param(lambda cls: cls("a", 1, 2), id="one too many"),
        pytest.param(lambda cls: cls("a", other=1), id="an unknown one"),
        pytest.param(lambda cls: cls("a", first="b"), id="one twice"),
        pytest.param(lambda cls: cls("a")._replace(other=1), id="an unknown one is replaced"),
        pytest.param(lambda cls: setattr(cls("a"), "first", "b"), id="a field is set"),
        pytest.param(lambda cls: setattr(cls("a"), "other", "b"), id="another attribute is set"),
    ],
)
def test_it_refuses_what_typing_refuses(act):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        act(Theirs)
    with pytest.raises((TypeError, AttributeError)):
        act(Ours)


# `cubin` is imported while the compiler runs, and `toolkit.search` once per machine.
SLOW = """
import sys, typing
AT_LEISURE = ("rtcompile.cubin", "rtcompile.toolkit.search")
import rtcompile
rtcompile.compile("__global__ void k() {}", arch="sm_80")
modules = [m for n, m in sys.modules.items() if n.startswith("rtcompile") and n not in AT_LEISURE]
for each in {c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__}:
    if "__dataclass_fields__" in vars(each) or typing.NamedTuple in getattr(each, "__orig_bases__", ()):
        print(each)
"""


@pytest.mark.needs_compiler
def test_no_module_that_a_first_build_imports_defines_a_slow_class():
    """A dataclass takes 0.8 ms, a class of `typing.NamedTuple` 0.2."""
    done = python(SLOW, check=True)
    assert done.stdout == ""


class Slow:
    """Computes its value once its gate is open."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()

    @computed_once
    def value(self) -> object:
        """Return an object of its own for each call."""
        self.begun.set()
        assert self.gate.wait(60)
        return object()


def test_a_value_is_computed_once_and_the_first_of_two_threads_gives_it():
    slow = Slow()
    seen: list[object] = []
    first = threading.Thread(target=lambda: seen.append(slow.value))
    first.start()
    assert slow.begun.wait(60)
    second = threading.Thread(target=lambda: seen.append(slow.value))
    second.start()
    slow.gate.set()
    first.join()
    second.join()
    assert seen == [slow.value] * 2
    assert Slow.value.__doc__ == "Return an object of its own for each call."


def test_a_child_forked_while_a_value_is_computed_computes_its_own():
    slow, other = Slow(), Slow()
    other.gate.set()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.begun.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(60)  # where it would wait for ever
        os._exit(0 if other.value else 1)
    status = os.waitpid(child, 0)[1]
    slow.gate.set()
    thread.join()
    assert status == 0


def test_nothing_uses_the_property_of_functools_whose_lock_a_fork_would_keep():
    folder = Path(rtcompile.__file__).parent
    users = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"@(functools\.)?cached_property", path.read_text())
    ]
    assert users == []
