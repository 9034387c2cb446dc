"""The example notebooks with their launches."""

import json
from pathlib import Path

import pytest

from tests import doors

pytest.importorskip("cupy")
pytest.importorskip("IPython", reason="IPython is not installed")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_example_notebook_runs_on_the_device(notebook):
    shell = doors.ipython()
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            result = shell.run_cell("".join(cell["source"]))
            if "raises-exception" not in cell["metadata"].get("tags", []):
                result.raise_error()
    assert shell.user_ns["GPU"]
