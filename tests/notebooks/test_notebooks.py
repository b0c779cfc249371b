"""Every notebook runs from a clean kernel, and is stored with what a code host shows of it."""

import base64
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
sys.path.insert(0, str(FOLDER))
from execute import MAX_BYTES, digest_of, leaks  # noqa: E402

LIVE = ("application/javascript", "application/vnd.jupyter.widget-view+json", "application/vnd.holoviews_exec.v0+json")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_is_stored_with_the_outputs_of_its_code(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.metadata.executed == digest_of(notebook), f"run `python notebooks/execute.py {path.stem}`"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert path.stat().st_size <= MAX_BYTES
    assert leaks(notebook) == []
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [one for one in outputs if one.output_type == "error" or one.get("name") == "stderr"]
    shown = [one.data for one in outputs if "data" in one]
    assert not [kind for data in shown for kind in data if kind in LIVE]
    assert not [data for data in shown if "<script" in data.get("text/html", "")]
    pictures = [base64.b64decode(data["image/png"]) for data in shown if "image/png" in data]
    assert len(pictures) >= 5
    assert all(one.startswith(b"\x89PNG") and len(one) > 2000 for one in pictures)
    # A cell that ends with a plot shows it.
    plots = [cell for cell in cells if cell.source.splitlines()[-1].startswith(("hp.plots.", "curves("))]
    assert plots
    assert all("image/png" in cell.outputs[-1].get("data", {}) for cell in plots)


@pytest.mark.parametrize(
    "text", ["/home/ann/x", "at /tmp/y.py:3", "C:\\\\Users", "http://localhost:1/planner?token=a", "https://a.example"]
)
def test_what_may_not_be_stored_is_found(text):
    output = nbformat.v4.new_output("stream", text=f"first\n{text}\n")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=[output])])
    assert leaks(notebook) == [text]


@pytest.mark.notebook
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs_from_a_clean_kernel(path, tmp_path, monkeypatch):
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path))
    monkeypatch.setenv("HETPLANNER_NOTEBOOK_STEPS", "8")
    notebook = nbformat.read(path, as_version=4)
    try:
        NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(path.parent)}}).execute()
    finally:
        from hetplanner.runs.agent.client import AgentClient

        AgentClient().shutdown()
    plots = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "text/html" in output.get("data", {})
    ]
    assert len(plots) >= 5
    # No part of a page may come from elsewhere: the plots work offline.
    assert not any("https://cdn." in plot["data"]["text/html"] for plot in plots)
