"""The repository's promises about itself."""

import importlib
import json
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hetplanner

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_readmes_test_command():
    command = (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1]
    assert command in README


def test_the_readme_names_only_files_that_exist():
    import re

    for link in re.findall(r"\]\((?!https?://|#)([^)]+)\)", README):
        assert (ROOT / link).exists(), link


def test_import_contracts_hold():
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "what", ["hetplanner.cli", "hetplanner.planners.interface", "hetplanner.plots", "hetplanner.runs.client"]
)
def test_planning_imports_no_torch_and_no_panel(what):
    code = f"import sys, {what}; print([m for m in ('torch', 'panel', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_public_function_bears_a_modules_name():
    clashes = []
    modules = [m.name for m in pkgutil.walk_packages(hetplanner.__path__, "hetplanner.")]
    for name in modules:
        parent_name, _, leaf = name.rpartition(".")
        parent = importlib.import_module(parent_name)
        importlib.import_module(name)
        if not hasattr(getattr(parent, leaf), "__path__") and not hasattr(getattr(parent, leaf), "__spec__"):
            clashes.append(name)
    assert not clashes


def test_the_facade_offers_what_it_names():
    for name in hetplanner.__all__:
        assert getattr(hetplanner, name) is not None


def test_sample_clusters_are_declared_and_parse():
    samples = sorted((ROOT / "sample_clusters").glob("*.json"))
    assert len(samples) >= 9
    for sample in samples:
        assert json.loads(sample.read_text())["format"] == "hetplanner/cluster@1"


def test_torch_is_pinned_to_what_the_runtime_was_tried_with():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "torch>=2.11,<2.14" in project["dependencies"]
