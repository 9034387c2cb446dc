"""The documentation builds without a warning, its examples work, and its search finds the right pages."""

import html
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.lookup.environment import VARIABLES
from rtcompile.messages.catalogue import MESSAGES
from rtcompile.request import units
from tests.documentation import PAGES, ROOT, RUN, blocks, has
from tests.processes import python, ran
from tests.tables import rows

QUESTIONS = dict(row[:2] for row in rows("docs/questions.txt"))


@pytest.fixture(scope="session")
def site(once: Callable[..., Path]) -> Path:
    """The texts of the site and their index: warnings are errors, and broken links are warnings.

    `make docs` also puts the texts into the theme's pages, which takes Sphinx as long again.
    """

    def built(folder: Path) -> None:
        words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "json"]
        done = ran(*words, "-d", folder / "trees", ROOT / "docs", folder / "json", cwd=ROOT)
        assert done.returncode == 0, done.stderr

    return once("site", built) / "json"


def page_of(site: Path, name: str) -> str:
    return str(json.loads((site / f"{name}.fjson").read_text(encoding="utf-8"))["body"])


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page))


RECIPES = [page for page in RUN if page.parent.name == "recipes"]
_INDEX = (ROOT / "docs/recipes/index.md").read_text(encoding="utf-8")
MARKED = re.findall(r"^\| \[.+?\]\((\S+\.md)\).*\u2713 \|$", _INDEX, re.MULTILINE)
OTHERS = [
    page for page in RUN if page not in RECIPES and any(block.language for block in blocks(page))
]
# The programs of these compile for seconds; tests/docs/test_examples.py compiles them for one architecture.
HEAVY = [page for page in OTHERS if page.stem in ("layout-conversion", "pipelined-copies")]
QUICK = [page for page in OTHERS if page not in HEAVY]
STARTS = 6  # number of tests, and of imports of CuPy, for all pages


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "pages",
    [*(QUICK[part::STARTS] for part in range(STARTS)), pytest.param(HEAVY, marks=pytest.mark.slow)],
    ids=[*map(str, range(STARTS)), "heavy"],
)
def test_the_code_of_a_page_works(pages, tmp_path):
    """Each page runs in its own process, in which CuPy is already imported."""
    assert _failed(pages, tmp_path) == {}


@pytest.mark.needs_compiler
def test_the_code_of_the_recipes_works(tmp_path):
    """All run in one process, since they are short and independent; those that need no GPU run below without one."""
    pages = [page for page in RECIPES if has("gpu") or page.name not in MARKED]
    assert _failed(pages, tmp_path, "--together") == {}


@pytest.mark.needs_compiler
def test_the_recipes_that_are_marked_run_without_a_gpu(tmp_path):
    """They run as they are: no kernel is pretended to be loaded, and CuPy's arrays are not NumPy's."""
    assert len(MARKED) >= 8
    program = (
        "import sys; from tests.documentation import *\n"
        "for page in sys.argv[1:]: run(ROOT / 'docs/recipes' / page, as_is=True)"
    )
    environ = {"PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""}
    done = python(program, *MARKED, cwd=tmp_path, environ=environ)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_recipe_fits_on_a_screen():
    assert len(RECIPES) == 28
    lengths = {page.stem: len(page.read_text(encoding="utf-8").splitlines()) for page in RECIPES}
    assert [name for name, lines in lengths.items() if lines > 50 and name != "index"] == []


def _failed(pages: list[Path], tmp_path: Path, *options: str) -> dict[str, str]:
    folder = tmp_path / "reader"
    folder.mkdir()
    words = [sys.executable, "-m", "tests.documentation", *options, *pages]
    done = ran(*words, cwd=folder, environ={"PYTHONPATH": str(ROOT), "HOME": tmp_path / "home"})
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_the_sidebar_has_at_most_24_entries():
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    entries = re.findall(
        r"^[\w/-]+$", "".join(re.findall(r"```{toctree}(.*?)```", index, re.S)), re.M
    )
    assert 20 < len(entries) <= 24


def test_the_links_of_the_pages_lead_to_existing_files():
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(
            r"\]\(([^)#\s]+)(?:#[^)]*)?\)",
            re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S),
        )
    ]
    assert len(links) > len(PAGES)
    assert not [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in links
        if not target.startswith("http") and not (page.parent / target).exists()
    ]


@pytest.mark.takes_seconds
def test_the_first_three_search_results_of_each_question_contain_the_expected_page(site):
    index = json.loads((site / "searchindex.json").read_text(encoding="utf-8"))
    found = {question: _search(index, question)[:3] for question in QUESTIONS}
    assert not {
        question: names
        for question, names in found.items()
        if not any(QUESTIONS[question] in text_of(page_of(site, name)) for name in names)
    }


@pytest.mark.takes_seconds
def test_the_catalogue_of_errors_is_on_the_site(site):
    kinds = ("compile", "link", "load", "launch")
    pages = [page_of(site, f"errors-{kind}") for kind in kinds]
    for known in MESSAGES:
        assert sum(f'id="{known.id}"' in page for page in pages) == 1, known.id
    text = text_of("".join(pages))
    assert "\u2039" not in text
    assert "(?P<" not in text


@pytest.mark.takes_seconds
def test_every_variable_that_a_build_depends_on_and_everything_public_is_explained(site):
    page = page_of(site, "environment-variables")
    named = {*VARIABLES, *units.nvcc_environ(dict.fromkeys(VARIABLES, ""))}
    assert [name for name in sorted(named) if f">{name}<" not in page] == []
    page = page_of(site, "api")
    modules = rtcompile._MODULES
    names = [name for name in dir(rtcompile) if not name.startswith("_") and name not in modules]
    names += [f"{module}.{name}" for module in modules for name in dir(getattr(rtcompile, module))]
    assert [name for name in names if f'id="rtcompile.{name}"' not in page] == []


def test_every_field_of_the_key_is_on_the_page_of_the_cache():
    code = (ROOT / "rtcompile/request/key.py").read_text(encoding="utf-8")
    table = (ROOT / "docs/cache.md").read_text(encoding="utf-8").partition("## Why did it")[0]
    labels = {label.strip() for label in re.findall(r'field\(f?"([^"{]+)', code)}
    labels -= {"key", "digest", "a", "ab", "nvrtc", "directory", "program directory"}
    assert labels
    assert [label for label in labels if label not in table] == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_only_pages_are_committed():
    assert ran("git", "ls-files", "docs/_build", "docs/_made", cwd=ROOT).stdout == ""


def _search(index: Any, question: str) -> list[str]:
    """Return the pages that the site's search shows for a question, in order.

    This follows searchtools.js: a page needs every word, in a heading (15 points) or in the text (5), or
    part of a word (7 and 2), and counts its best word; a heading that contains the question, or an index
    entry that does, counts by how much of it the question is. docs/scripts/static/scorer.js adds a point
    for each word in a result's heading.
    """
    import snowballstemmer
    from sphinx.search.en import SearchEnglish

    stem = snowballstemmer.stemmer("english").stemWord
    whole_words = re.findall(r"\w+", question.lower())
    words = [stem(w) for w in whole_words if w not in SearchEnglish.stopwords and not w.isdigit()]
    scores: dict[int, dict[str, int]] = {}
    for word in dict.fromkeys(words):
        for terms, whole, part in (("terms", 5, 2), ("titleterms", 15, 7)):
            known = index[terms]
            if word in known:
                matches, points = [word], whole
            else:
                matches, points = [term for term in known if len(word) > 2 and word in term], part
            for term in matches:
                pages = known[term]
                for page in [pages] if isinstance(pages, int) else pages:
                    scores.setdefault(page, {})[word] = points
    needed = {len(set(words)), len({word for word in words if len(word) > 2})}
    titles = index["titles"]
    results = [
        (max(found.values()), titles[page], page)
        for page, found in scores.items()
        if len(found) in needed
    ]
    for kind, most in (("alltitles", 15), ("indexentries", 100)):
        for entry, places in index[kind].items():
            if question.lower() in entry.lower() and len(question) >= len(entry) / 2:
                points = round(most * len(question) / len(entry))
                results += [(points, f"{titles[page]} > {entry}", page) for page, *_ in places]
    words = re.findall(r"\w{3,}", question.lower())
    ordered = sorted(
        (-points - sum(word in title.lower() for word in words), title.lower(), page)
        for points, title, page in results
    )
    return list(dict.fromkeys(index["docnames"][page] for _, _, page in ordered))
