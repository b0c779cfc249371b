"""The documentation: the site is built without a warning and needs no network; its sentences are short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import PAGES, ROOT, blocks, commands

LONGEST = 35
"""Words of a sentence."""
BANNED = ("whoever", "nobody", "who is gone", "comes to nothing", "goes by itself", "thereby", "in order to", "utilize")
SOURCES = r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["']https?://[^"']+"""


def test_the_site_is_built_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    site = tmp_path / "html"
    argv = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-d", str(tmp_path / "doctrees")]
    done = subprocess.run([*argv, str(ROOT / "docs"), str(site)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert len(pages) > len(PAGES)
    assert [found for page in pages for found in re.findall(SOURCES, page)] == []
    schemas = re.findall(r'href="\.\./(schemas/\w[\w-]*\.json)"', (site / "reference" / "files.html").read_text())
    assert schemas
    assert all((site / name).is_file() for name in schemas)


REGISTER = """
from hetplanner.planners import registry
registry._PLANNERS["fastest-first"] = ("fastest_first", "FastestFirstPlanner")
"""


def test_the_planner_of_the_example_passes_the_conformance_tests(tmp_path: Path) -> None:
    (code,) = (block for block in blocks("python") if "class FastestFirstPlanner" in block)
    (tmp_path / "fastest_first.py").write_text(code)
    (tmp_path / "with_the_example.py").write_text(REGISTER)
    (command,) = (one for one in commands() if one.endswith("-k fastest-first"))
    argv = [sys.executable, "-m", *command.split(), "-p", "with_the_example", "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        argv, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "[100%]" in done.stdout


def sentences(page: str) -> list[str]:
    """Those of running text: code, tables and headings are left out, and each item of a list is one of its own."""
    text = re.sub(r"^(```|:::).*?^\1$", "", page, flags=re.M | re.S)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#", "    ", "!["))]
    text = re.sub(r"`[^`]*`", "CODE", "\n".join(lines))
    paragraphs = re.split(r"\n\s*\n|\n(?=- )", text)
    parts = [re.split(r"(?<=[.?:;!])\s+", " ".join(paragraph.split())) for paragraph in paragraphs]
    return [sentence for some in parts for sentence in some if sentence]


@pytest.mark.parametrize("name", PAGES)
def test_sentences_are_short_and_plain(name: str) -> None:
    found = sentences(PAGES[name])
    assert [one for one in found if len(one.split()) > LONGEST] == []
    if name != "docs/contributing/style.md":
        assert [one for one in found if any(word in one.lower() for word in BANNED)] == []
