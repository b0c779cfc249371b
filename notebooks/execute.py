"""Executes the notebooks and stores what they show, so that it can be read where no kernel runs: on a code host.

    python notebooks/execute.py [NAME ...]

Needs the extras `test` and `notebook`, and a Chromium (one is installed where that is allowed). Every notebook runs in
a fresh kernel and a home of its own. A code host runs no scripts, so figures are stored as pictures, taken in the
browser; whoever runs a notebook has the live figures instead. A digest of the code goes with the outputs: a test tells
when the code was changed and not executed again.
"""

import argparse
import base64
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image, ImageChops, ImageOps
from playwright.sync_api import Page, sync_playwright

from hetplanner.runs.agent.client import AgentClient

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tests.support.pages.find_browser import find_browser

WIDTH_PX, SCALE, COLOURS = 1400, 1.5, 256
FLOWING_PX = 1120
"""Of figures that take the width they get."""
MARGIN_PX = 8
MAX_BYTES = 1_000_000
"""Of a notebook with its outputs."""
CELL_S = 600
PATIENCE_MS = 120_000
SETTLED_MS = 500
LEAK = re.compile(r"(?<![\w.])/(?:home|root|tmp|var|usr|opt|mnt|srv|work|wt|Users)/|[A-Z]:\\\\|token=|https?://")
"""What outputs may not hold: places of the machine that ran them, secrets, hosts."""

PAGE = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0;background:#fff"><script src="scripts.js"></script>
<div id="current" style="width:{width}px">{html}</div>"""
# Toolbars are of no use in a picture.
DRAW = """() => Bokeh.documents.forEach(one => [...one._all_models.values()].forEach(
  model => { if ("toolbar_location" in model.properties) { model.toolbar_location = null } }))"""
DRAWN = """() => window.Bokeh && Bokeh.documents.length > 0 && Bokeh.documents.every(one => one.is_idle)
  && document.getElementById("current").getBoundingClientRect().height > 40"""


def digest_of(notebook: nbformat.NotebookNode) -> str:
    """Of the code, in order."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]


def picture(page: Page, scripts: str, html: str) -> str:
    """What an output shows in a browser: a PNG in base64."""
    with tempfile.TemporaryDirectory() as folder:
        document, script = Path(folder) / "output.html", Path(folder) / "scripts.js"
        script.write_text(scripts, encoding="utf-8")
        document.write_text(
            PAGE.format(html=html, width=FLOWING_PX if "display:flex" in html else WIDTH_PX), encoding="utf-8"
        )
        page.goto(document.as_uri())
        page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
        page.evaluate(DRAW)
        page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
        page.wait_for_timeout(SETTLED_MS)
        shot = page.locator("#current").screenshot()
    found = Image.open(io.BytesIO(shot)).convert("RGB")
    inked = ImageChops.difference(found, Image.new("RGB", found.size, "white")).getbbox()
    assert inked is not None, "an output is empty"
    found = ImageOps.expand(found.crop(inked), MARGIN_PX, "white")
    # Figures have few colours besides the blends at their edges: what is frequent is kept as it is.
    frequent = sorted(found.getcolors(found.width * found.height) or [], reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in frequent for part in colour])
    found = found.quantize(palette=palette, dither=Image.Dither.NONE)
    small = io.BytesIO()
    found.save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def still(page: Page, notebook: nbformat.NotebookNode) -> None:
    """Turns outputs that need a browser into pictures, and drops what only serves them, warnings and moments."""
    scripts = ""
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        kept = []
        for output in cell.get("outputs", []):
            data, html = output.get("data", {}), output.get("data", {}).get("text/html", "")
            if output.output_type == "stream" and output.name == "stderr":
                continue
            if "application/vnd.holoviews_load.v0+json" in data:
                scripts += data["application/javascript"] + ";\n"
                continue
            served = "application/vnd.holoviews_exec.v0+json" in data and "text/plain" not in data
            if output.output_type == "display_data" and (not data or served or "esms-options" in html):
                continue  # what HoloViews shows to a running kernel
            if "<script" in html:
                output.data = {"image/png": picture(page, scripts, html), "text/plain": data.get("text/plain", "")}
                output.metadata = {}
            kept.append(output)
        if cell.cell_type == "code":
            cell.outputs = kept


def execute(page: Page, path: Path) -> None:
    """Runs a notebook from a clean kernel and stores it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as home:
        os.environ["HETPLANNER_HOME"] = home
        try:
            NotebookClient(notebook, timeout=CELL_S, resources={"metadata": {"path": str(HERE)}}).execute()
        finally:
            AgentClient().shutdown()
    still(page, notebook)
    notebook.metadata["executed"] = digest_of(notebook)
    text = nbformat.writes(notebook)
    assert len(text) <= MAX_BYTES, f"{path.name}: {len(text):,} bytes with its outputs"
    assert not leaks(notebook), f"{path.name}: {leaks(notebook)}"
    path.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{path.name}: {len(text):,} bytes\n")


def leaks(notebook: nbformat.NotebookNode) -> list[str]:
    """Lines of outputs that name places of a machine, or hosts."""
    said = []
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        texts = [value for kind, value in output.get("data", {}).items() if not kind.startswith("image/")]
        said += [line for text in [output.get("text", ""), *texts] for line in str(text).splitlines()]
    return [line[:200] for line in said if LEAK.search(line)]


def main() -> None:
    """Executes the notebooks named on the command line, or all."""
    parser = argparse.ArgumentParser(description="Execute the notebooks and store their outputs.")
    parser.add_argument("names", nargs="*", help="such as 01_plan; all if none is given")
    names = parser.parse_args().names
    browser_path = find_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH_PX, "height": 900}, device_scale_factor=SCALE)
        for path in sorted(HERE.glob("*.ipynb")):
            if not names or path.stem in names:
                execute(page, path)
        browser.close()


if __name__ == "__main__":
    main()
