"""Tests of ``%%cuda`` in a real Jupyter kernel."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import ENDLESS, descendants, ended
from tests.programs import TWO

ROOT = Path(__file__).parents[2]

pytest.importorskip("IPython", reason="IPython is not installed: it is in the extra `test`")

pytestmark = pytest.mark.needs_compiler


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """A running Jupyter kernel and its client, the extension loaded, which each test leaves so."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: it is in the extra `test`")
    manager = pytest.importorskip("jupyter_client.manager")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        running, client = manager.start_new_kernel(kernel_name="python3")
    try:
        client.execute_interactive("%load_ext rtcompile", timeout=60)
        yield running, client
    finally:
        client.stop_channels()
        running.shutdown_kernel(now=True)


def test_interrupting_a_cell_ends_its_compiler(kernel):
    running, client = kernel
    messages: list[dict[str, Any]] = []
    begin = 0.0

    def on_output(message: dict[str, Any]) -> None:
        nonlocal begin
        messages.append(message)
        if "compiling: " in str(message["content"].get("data")) and not begin:
            begin = time.monotonic()
            running.interrupt_kernel()

    cell = f"%%cuda --arch sm_80\n{ENDLESS}"
    reply = client.execute_interactive(cell, timeout=60, output_hook=on_output)
    assert 0 < time.monotonic() - begin < 60  # compiling the endless type would take hours
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert "Interrupted: nothing is being compiled" in reply["content"]["traceback"][0]
    assert any(message["header"]["msg_type"] == "clear_output" for message in messages)
    after = client.execute_interactive(f"%%cuda --arch sm_80\n{TWO}", timeout=60, output_hook=id)
    assert after["content"]["status"] == "ok"


@pytest.mark.some(1)
@pytest.mark.parametrize("at_once", [True, False])
def test_restarting_a_kernel_in_mid_build_leaves_no_compiler(kernel, at_once):
    running, client = kernel
    family: list[int] = []

    def on_output(message: dict[str, Any]) -> None:
        if "compiling: " in str(message["content"].get("data")) and not family:
            family[:] = descendants(running.provisioner.pid)
            running.restart_kernel(now=at_once)
            raise InterruptedError

    cell = f"%%cuda --arch sm_80\n{ENDLESS}"
    with pytest.raises(InterruptedError):
        client.execute_interactive(cell, timeout=60, output_hook=on_output)
    client.wait_for_ready(timeout=60)
    assert len(family) > 1
    assert all(map(ended, family))
    client.execute_interactive("%load_ext rtcompile", timeout=60)
    after = client.execute_interactive(f"%%cuda --arch sm_80\n{TWO}", timeout=60, output_hook=id)
    assert after["content"]["status"] == "ok"


def test_a_batch_shows_one_line_in_a_notebook_without_ipywidgets(kernel):
    _, client = kernel
    drawn: list[dict[str, Any]] = []

    def on_output(message: dict[str, Any]) -> None:
        assert "ipywidgets" not in str(message["content"])
        if "compiled" in str(message["content"].get("data")):
            drawn.append(message)

    cell = """
    import rtcompile
    template = rtcompile.CompileRequest("template <int N> __global__ void k() {}", arch="sm_80")
    variants = [template.replace(name_expressions=(f"k<{i}>",)) for i in range(3)]
    _ = rtcompile.compile_many(variants)
    """
    reply = client.execute_interactive(cell, timeout=60, output_hook=on_output)
    assert reply["content"]["status"] == "ok", reply["content"]
    kinds = [message["header"]["msg_type"] for message in drawn]
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}, "one line that changes, not one after another"
    assert "3 of 3 compiled" in drawn[-1]["content"]["data"]["text/plain"]


def test_an_error_stops_a_notebook_with_a_message_readable_on_jupyters_red(kernel):
    _, client = kernel
    cell = "%%cuda --arch sm_80\n__global__ void k() { int x = 1 }"
    reply = client.execute_interactive(cell, timeout=60, output_hook=id)
    assert reply["content"]["status"] == "error"
    traceback = "\n".join(reply["content"]["traceback"])
    assert "\x1b[1merror: " in traceback
    assert set(re.findall(r"\x1b\[[\d;]*m", traceback)) == {"\x1b[1m", "\x1b[0m"}
    assert "magics.py" not in traceback


ERRORS = {  # a cell of Python: the text of its error, and the user's line
    "rtcompile.compile('__global__ void k() { nope(); }', arch='sm_80')": (
        'kernel.cu:1:23: error: identifier "nope" is undefined',
        "from line 2: rtcompile.compile(",
    ),
    "rtcompile.compile('', arch='sm_eighty')": (
        "InvalidRequest: ",
        "from line 2: rtcompile.compile(",
    ),
}


@pytest.mark.parametrize("cell", ERRORS)
def test_every_error_of_ours_is_one_message_without_our_frames(kernel, cell):
    _, client = kernel
    reply = client.execute_interactive(f"import rtcompile\n{cell}", timeout=60, output_hook=id)
    shown = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(reply["content"]["traceback"]))
    first, *_, last = shown.split("\n")
    assert first.startswith(ERRORS[cell][0])
    assert ERRORS[cell][1] in last
    assert "Traceback" not in shown
    assert "rtcompile/" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "notebook", sorted((ROOT / "examples/notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_an_example_notebook_runs_up_to_the_launches(notebook, monkeypatch):
    nbclient = pytest.importorskip(
        "nbclient", reason="nbclient is not installed: it is in the extra `test`"
    )
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    content = nbformat.read(notebook, as_version=4)
    assert not any(cell.get("outputs") for cell in content.cells), "commit it without outputs"
    nbclient.NotebookClient(content, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    assert any("registers" in output.get("data", {}).get("text/html", "") for output in outputs)
    failed = [cell for cell in content.cells if "raises-exception" in cell.metadata.get("tags", [])]
    assert all("error: " in "".join(cell.outputs[-1].traceback) for cell in failed)
