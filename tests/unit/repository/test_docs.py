"""The documentation: the site is built without a warning, examples pass the tests they name, sentences are short."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.repository.documentation import PAGES, ROOT

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


STEP = r"^(Write|Change) `([^`]+)`[^\n]*\n(?:[^\n]+\n)*\n```(?:python|diff)\n(.*?)^```$"
EXAMPLES = [n for n, page in PAGES.items() if n.startswith("docs/contributing/") and re.search(STEP, page, re.M | re.S)]
"""Pages that say step by step which file to write, or how to change one."""
NEEDED = ("hetplanner", "tests", "sample_clusters", "pyproject.toml")


def steps(page: str) -> list[tuple[str, str, str]]:
    """`Write` or `Change`, the path, and the code or the changes below."""
    return re.findall(STEP, page, re.M | re.S)


def changed(text: str, changes: str) -> str:
    """A file with changes as `diff` shows them, without line numbers: each place must be found exactly once."""
    text = f"\n{text}"
    for hunk in re.split(r"^@@.*\n", changes, flags=re.M):
        lines = hunk.splitlines(keepends=True)
        old, new = ("\n" + "".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text[1:]


def copy_of_the_repository(folder: Path) -> None:
    """What the examples change, and their tests need."""
    for name in NEEDED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def run_in(folder: Path, *words: str) -> str:
    """Output of a program that takes its code from a folder; it must end with 0."""
    environment = os.environ | {"PYTHONPATH": os.fspath(folder)}
    argv = [sys.executable, "-m", *words]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_followed_to_the_letter_passes_its_conformance_tests(name: str, tmp_path: Path) -> None:
    copy_of_the_repository(tmp_path)
    paths = []
    for kind, path, text in steps(PAGES[name]):
        file = tmp_path / path
        assert file.exists() == (kind == "Change"), path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text if kind == "Write" else changed(file.read_text(), text))
        paths.append(path)
    run_in(tmp_path, "ruff", "check", *paths)
    run_in(tmp_path, "ruff", "format", "--check", *paths)
    commands = [line.strip() for line in PAGES[name].splitlines() if line.startswith("    pytest ")]
    assert commands
    for command in commands:
        assert "[100%]" in run_in(tmp_path, *shlex.split(command), "-p", "no:cacheprovider")


def test_there_is_an_example_for_each_kind_of_plug_in() -> None:
    assert [Path(name).stem for name in EXAMPLES] == ["a_planner", "a_codec", "a_launcher", "a_page"]


@pytest.mark.parametrize("name", [*PAGES, "CONTRIBUTING.md"])
def test_paths_that_are_named_exist(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    written = [path for kind, path, _ in steps(page) if kind == "Write"]
    named = re.findall(r"`((?:hetplanner|tests|docs|apps|notebooks|sample_clusters)(?:/[^`\s@]*)?)`", page)
    assert [path for path in named if path not in written and not list(ROOT.glob(path.rstrip("/")))] == []


WHERE = PAGES["docs/contributing/where_to_add.md"]


def test_the_map_of_the_code_says_what_the_packages_say() -> None:
    packages = sorted(path.parent for path in (ROOT / "hetplanner").rglob("__init__.py"))[1:]
    texts = [ast.get_docstring(ast.parse((path / "__init__.py").read_text(encoding="utf-8"))) for path in packages]
    rows = [
        f"| `{path.relative_to(ROOT)}` | {(text or '').splitlines()[0]} |"
        for path, text in zip(packages, texts, strict=True)
    ]
    assert WHERE.split("## Map of the code")[1].splitlines()[6:] == rows


def test_the_layers_are_those_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers")
    lines = [", ".join(re.findall(r"hetplanner\.(\w+)", layer)) for layer in reversed(layers)]
    assert re.findall(r"^\d+\. (.*)$", WHERE, re.M) == lines


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
