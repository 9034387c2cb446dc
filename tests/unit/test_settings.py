"""The environment's defaults are read, checked and overridden by arguments."""

from __future__ import annotations

import pytest

from rtcompile.errors import InvalidRequest
from rtcompile.settings import Settings


@pytest.mark.parametrize(
    ("environ", "field", "value"),
    [
        ({"RTCOMPILE_CACHE_DIR": "/a"}, "cache_dir", "/a"),
        ({"CUPY_CACHE_DIR": "/b"}, "cache_dir", "/b/rtcompile"),
        ({"RTCOMPILE_CACHE_DIR": "/a", "CUPY_CACHE_DIR": "/b"}, "cache_dir", "/a"),
        ({"XDG_CACHE_HOME": "/c"}, "cache_dir", "/c/rtcompile"),
        ({"RTCOMPILE_CACHE_SIZE": "512M"}, "cache_size", 512 << 20),
        ({"RTCOMPILE_CACHE_SIZE": "1.5GiB"}, "cache_size", 3 << 29),
        ({"RTCOMPILE_FALLBACK": "never"}, "fallback", "never"),
        ({"RTCOMPILE_PCH": "0"}, "pch", False),
        ({"RTCOMPILE_TIMEOUT": "2.5"}, "timeout", 2.5),
        ({"RTCOMPILE_MEMORY_LIMIT": "2G"}, "memory_limit", 2 << 30),
        ({"RTCOMPILE_JOBS": "3"}, "jobs", 3),
        ({"RTCOMPILE_JIT": "0"}, "jit", False),
        ({"CUPY_CACHE_IN_MEMORY": "1"}, "cache_on_disk", False),
        ({"CUPY_CUDA_COMPILE_WITH_DEBUG": "1"}, "debug", True),
        ({"CUPY_CUDA_COMPILE_WITH_DEBUG": "yes"}, "debug", False),
        ({"CUPY_CACHE_SAVE_CUDA_SOURCE": "1"}, "save_source", True),
        ({"CUPY_DUMP_CUDA_SOURCE_ON_ERROR": "1"}, "dump_source_on_error", True),
        ({"CUPY_COMPILE_WITH_PTX": "1"}, "ptx", True),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_a_variable_sets_its_field(environ, field, value):
    assert getattr(Settings.from_environ(environ), field) == value


@pytest.mark.parametrize(
    "environ",
    [
        {"RTCOMPILE_FALLBACK": "maybe"},
        {"RTCOMPILE_PCH": "on"},
        {"RTCOMPILE_TIMEOUT": "-1"},
        {"RTCOMPILE_TIMEOUT": "soon"},
        {"RTCOMPILE_MEMORY_LIMIT": "much"},
        {"RTCOMPILE_CACHE_SIZE": "0"},
        {"RTCOMPILE_JOBS": "0"},
        {"RTCOMPILE_JIT": "2"},
    ],
    ids=lambda environ: "=".join(*environ.items()),
)
def test_nonsense_is_an_error_that_names_the_variable(environ):
    (name,) = environ
    with pytest.raises(InvalidRequest, match=name):
        Settings.from_environ(environ)


def test_arguments_win_over_the_environment():
    settings = Settings.from_environ({"RTCOMPILE_PCH": "1", "RTCOMPILE_FALLBACK": "never"})
    changed = settings.override(pch=False, fallback="always", timeout=3, memory_limit="1G")
    assert (changed.pch, changed.fallback, changed.timeout, changed.memory_limit) == (
        False,
        "always",
        3.0,
        1 << 30,
    )
    assert settings.override() is settings
    with pytest.raises(InvalidRequest, match="fallback"):
        settings.override(fallback="sometimes")
