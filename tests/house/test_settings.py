"""Tests of settings: environment variables are read, checked, and overridden by arguments."""

import math
import os
import pwd
from types import SimpleNamespace

import pytest

import rtcompile
from rtcompile.errors import InvalidRequest
from rtcompile.settings import Settings
from tests.tables import from_table


@from_table
def test_a_variable_sets_its_field(environ, field, value):
    assert getattr(Settings.from_environ(environ), field) == value


@from_table
def test_an_invalid_value_is_an_error_that_names_the_variable(name, values):
    for value in values:
        with pytest.raises(InvalidRequest, match=f"RTCOMPILE_{name}.*{value[:9]}"):
            Settings.from_environ({f"RTCOMPILE_{name}": value})


@from_table
def test_an_argument_of_a_wrong_type_is_an_error_that_names_it(name, values):
    for value in values:
        with pytest.raises(InvalidRequest, match=f"^{name}"):
            Settings("").override(**{name: value})


@pytest.mark.parametrize("seconds", [math.inf, 1e300, 10**5000, "inf"], ids=lambda _: "")
def test_an_enormous_time_limit_means_no_limit(seconds):
    assert Settings("", timeout=1.0).override(timeout=seconds).timeout is None


def test_arguments_take_precedence_over_the_environment():
    settings = Settings.from_environ({"RTCOMPILE_PCH": "1", "RTCOMPILE_FALLBACK": "never"})
    changed = settings.override(pch=False, fallback="always", timeout=3, memory_limit="1G")
    found = changed.pch, changed.fallback, changed.timeout, changed.memory_limit
    assert found == (False, "always", 3.0, 1 << 30)
    assert settings.override() is settings


NO_HOME = [{}, {"HOME": ""}, {"HOME": "here"}]


@pytest.mark.parametrize("environ", NO_HOME)
def test_without_home_the_password_file_decides(environ, monkeypatch, tmp_path):
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path)))
    assert Settings.from_environ(environ).cache_dir == f"{tmp_path}/.cache/rtcompile"


@pytest.mark.parametrize("home", ["/dev/null/home", "", None])
@pytest.mark.parametrize("environ", NO_HOME)
def test_a_user_without_a_home_has_a_temporary_folder_of_its_own(environ, home, monkeypatch):
    def getpwuid(uid):
        if home is None:
            raise KeyError(uid)
        return SimpleNamespace(pw_dir=home)

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    own = f"rtcompile-cache-{os.geteuid()}"
    assert Settings.from_environ(environ).cache_dir == f"/tmp/{own}"
    assert Settings.from_environ({**environ, "TMPDIR": "/t"}).cache_dir == f"/t/{own}"
    with pytest.raises(InvalidRequest, match="the user has no home directory"):
        Settings.from_environ({**environ, "RTCOMPILE_CACHE_DIR": "~/cache"})


def test_the_root_folder_is_a_home_only_for_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    found = Settings.from_environ({"HOME": "/", "TMPDIR": "/t"}).cache_dir
    assert found == "/t/rtcompile-cache-1234"


@pytest.mark.needs_compiler
@from_table
def test_a_path_relative_to_a_removed_working_directory_is_an_error(
    tmp_path, monkeypatch, variable, given
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    if variable:
        monkeypatch.setenv(variable, "relative")

    with pytest.raises(InvalidRequest, match="the working directory, which was removed"):
        rtcompile.compile("__global__ void k() {}", arch="sm_80", **given)


@pytest.fixture(scope="module")
def cache_of_a_module() -> str:
    return Settings.from_environ().cache_dir


def test_fixtures_do_not_use_the_developers_cache(cache_of_a_module):
    own = Settings.from_environ({"HOME": os.environ.get("HOME", "/")}).cache_dir
    assert cache_of_a_module != own
    assert Settings.from_environ().cache_dir not in (own, cache_of_a_module)
