"""Every notebook runs from a clean kernel, and is stored without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_stripped(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


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
        from hetplanner.runs.client import AgentClient

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
