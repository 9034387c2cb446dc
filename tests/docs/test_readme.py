"""The README's examples compile, and its lists are complete."""

import re
import sys
from pathlib import Path

import pytest

from tests.processes import ran

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLE = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]


def test_the_readme_and_its_example_are_of_the_promised_length():
    """tests/docs/test_docs.py runs the example."""
    assert len(EXAMPLE.splitlines()) <= 17
    assert len(README.splitlines()) <= 120


def test_every_environment_variable_is_in_the_table_and_no_other():
    named_by = re.compile(r"\b(?:RTCOMPILE|CUPY)_[A-Z]+(?:_[A-Z]+)*\b")
    read = {
        name
        for file in (ROOT / "rtcompile").rglob("*.py")
        for name in named_by.findall(file.read_text())
        if f'"{name}"' in file.read_text()
    }
    page = (ROOT / "docs/environment-variables.md").read_text()
    listed = set(re.findall(r"^\| `((?:RTCOMPILE|CUPY)_\w+)`", page, re.MULTILINE))
    assert listed == read


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_every_dependency_has_a_stated_purpose():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = (ROOT / "docs/install.md").read_text().partition("## Dependencies, and why")[2]
    for requirement in project["dependencies"]:
        name = re.match(r"[\w-]+", requirement)[0]
        assert re.search(rf"^\| .*{name}.* \| \S", table, re.MULTILINE), name
    for extra in project["optional-dependencies"]:
        if extra not in ("test", "docs"):
            assert f"`{extra}`" in table, extra


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_links_are_relative_and_lead_to_the_repository_from_the_package_index():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rule = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"][0]
    home = project["project"]["urls"]["Source"] + "/blob/main/"
    written = re.findall(r"\]\(([^)]+)\)", README)
    published = re.findall(r"\]\(([^)]+)\)", re.sub(rule["pattern"], rule["replacement"], README))
    assert written
    assert [target for target in written if target.startswith("https://")] == []
    assert published == [home + target for target in written]


def test_the_metadata_contains_the_repositorys_address():
    done = ran("git", "grep", "-l", "github.com/rtcompile/rtcompile", cwd=ROOT)
    if done.returncode > 1:
        pytest.skip("this is no git checkout")
    assert set(done.stdout.split()) == {
        ".github/ISSUE_TEMPLATE/config.yml",
        "CITATION.cff",
        "pyproject.toml",
        "tests/docs/test_readme.py",
    }


def test_the_first_command_installs_this_checkout_with_what_it_needs():
    first = re.search(r"```sh\n(.*?)```", README, re.DOTALL)[1].splitlines()
    for line in first:
        extras = re.fullmatch(r"pip install (?:torch )?'\.\[([\w,]+)\]' +# .*", line)[1]
        for extra in extras.split(","):
            assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
