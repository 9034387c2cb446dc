"""The figures of README and the pages are those of the results, which are of one commit."""

import json
import shutil

import pytest

from benchmarks import publish
from tests.processes import ran

RESULTS = publish.ROOT / "benchmarks/results"
NAMES = sorted({name for _, (name, _), *_ in publish.ROWS})


@pytest.mark.parametrize("page", publish.PAGES)
def test_a_page_has_the_figures_of_the_results(page):
    text = (publish.ROOT / page).read_text()
    marks = [*publish.MARKED.finditer(text)]
    assert marks
    # A line that begins with a comment ends a paragraph.
    assert all("|---" in mark[0] for mark in marks if text[mark.start() - 1] == "\n")
    assert publish.written(text, publish.Results()) == text


def test_each_part_is_on_a_page_and_each_mark_is_known():
    pages = "".join((publish.ROOT / page).read_text() for page in publish.PAGES)
    marked = [mark[2] for mark in publish.MARKED.finditer(pages)]
    assert sorted(marked) == sorted(publish.PARTS)
    assert pages.count("<!-- published:") == pages.count("<!-- end -->") == len(marked)


def test_the_measured_commit_is_in_the_history():
    results = publish.Results()
    publish.conditions(results)
    shallow = ["git", "rev-parse", "--is-shallow-repository"]
    if ran(*shallow, cwd=publish.ROOT).stdout.strip() != "false":
        pytest.skip("this is no clone with its history")
    known = ["git", "cat-file", "-e", f"{results.commit}^{{commit}}"]
    assert not ran(*known, cwd=publish.ROOT).returncode


@pytest.mark.parametrize("name", NAMES)
def test_results_of_two_commits_are_not_published(name, tmp_path):
    for each in NAMES:
        shutil.copy(RESULTS / f"{each}.json", tmp_path)
    for commit in ("f" * 40, None):
        changed = {**json.loads((RESULTS / f"{name}.json").read_text()), "commit": commit}
        (tmp_path / f"{name}.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match="not of one commit"):
            publish.written((publish.ROOT / "README.md").read_text(), publish.Results(tmp_path))


def test_a_figure_that_was_edited_by_hand_is_noticed():
    text = (publish.ROOT / "README.md").read_text()
    mark = next(each for each in publish.MARKED.finditer(text) if each[2] == "whole processes")
    edited = text[: mark.start()] + mark[0].replace(" 1.", " 0.", 1) + text[mark.end() :]
    assert edited != text
    assert publish.written(edited, publish.Results()) == text
