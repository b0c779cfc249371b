"""The repository's promises about itself."""

import ast
import importlib
import io
import json
import operator
import pkgutil
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetplanner
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.launchers.hosts_file import read_hosts
from hetplanner.profiles.files import load_profile
from hetplanner.profiles.match import difference
from hetplanner.runs.agent.allowed_paths import allowed_paths_file, read_allowed_paths
from hetplanner.workload.presets import preset
from tests.support.processes.imported import imported
from tests.support.repository.documentation import README, ROOT, blocks, commands

PACKAGE = ROOT / "hetplanner"


def test_ci_runs_the_readmes_test_command():
    last = (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1]
    assert last in README.splitlines()
    assert all(part in commands() for part in last.split(" && "))


def test_the_readme_is_short():
    assert len(README.split()) <= 900


LONGEST = 60
"""Lines of a function; compiled kernels cannot be taken apart as freely."""


def test_functions_are_short():
    found = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST
        and not any("kernel" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert found == []


RIDDLES = re.compile(r"\b(?:whoever|nobody|everybody|somebody)\b", re.IGNORECASE)
"""Words that hide which rank, peer, process or user is meant."""
FAULT = "everybody"
"""A kind of fault of the event simulation: all processes die at once."""


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment, docstring and other string of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != FAULT:
            yield node.lineno, node.value


def test_texts_name_who_they_mean():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {riddle.group()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in _texts(path.read_text(encoding="utf-8"))
        for riddle in RIDDLES.finditer(text)
    ]
    assert found == []


MOST_FILES = 16


@pytest.mark.parametrize("top", ["hetplanner", "tests"])
def test_folders_are_small(top):
    counts = Counter(path.parent.relative_to(ROOT) for path in (ROOT / top).rglob("*.py"))
    assert {str(folder): count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_files_of_tests_have_names_of_their_own():
    """Two of one name would be one module to pytest."""
    counts = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_package_says_what_it_holds():
    silent = [path for path in PACKAGE.rglob("__init__.py") if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_the_readme_names_only_files_that_exist():
    for link in re.findall(r"\]\((?!https?://|#)([^)]+)\)", README):
        assert (ROOT / link).exists(), link


def test_the_documented_files_load(tmp_path):
    profiles, clusters = [], []
    for number, text in enumerate(blocks("json")):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        if "hetplanner/profile@" in text:
            profiles.append(load_profile(path))
        else:
            clusters.append(load_cluster(path))
    assert len(profiles) == 1
    assert all(cluster.devices for cluster in clusters)
    # Of the preset that it names.
    assert difference(profiles[0], preset(profiles[0].model, dtype="float16")) == ""


def test_the_documented_agent_file_loads(tmp_path):
    *_, agent_toml = blocks("toml")
    allowed_paths_file(tmp_path).write_text(agent_toml)
    allowed_paths_file(tmp_path).chmod(0o600)
    offers = read_allowed_paths(tmp_path)
    assert offers.data_names
    assert offers.output_names


def test_the_documented_hosts_files_load(tmp_path):
    for text, table in zip(blocks("toml"), ("ssh", "slurm", "kubernetes"), strict=False):
        (tmp_path / "hosts.toml").write_text(text)
        hosts = read_hosts(tmp_path / "hosts.toml")
        assert hosts.hosts
        assert (hosts.slurm is not None, hosts.kubernetes is not None) == (table == "slurm", table == "kubernetes")


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_documented_python_names_what_there_is(number):
    tree = ast.parse(blocks("python")[number])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert all(hasattr(importlib.import_module(node.module), name.name) for name in node.names)
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if dotted.startswith("hp.") and "(" not in dotted:
                assert operator.attrgetter(dotted.removeprefix("hp."))(hetplanner)


def test_import_contracts_hold():
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "what", ["hetplanner.cli.app", "hetplanner.planners.interface", "hetplanner.plots", "hetplanner.runs.agent.client"]
)
def test_planning_imports_no_torch_and_no_panel(what):
    assert imported(f"import {what}", "torch", "panel", "numba") == []


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


def test_a_process_of_tests_takes_one_thread():
    import numba
    import torch

    assert torch.get_num_threads() == 1
    assert numba.config.NUMBA_NUM_THREADS == 1


def test_tests_that_start_processes_are_dealt_out_by_files():
    files = [
        "tests/distributed/training/test_gpu.py",
        "tests/distributed/installed/test_documented_commands.py",
        "tests/unit/repository/test_find_browser.py",
    ]
    words = ["-n", "2", "-m", "", "-vv", "-k", "only_installs or gpu or hangs"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    workers: dict[str, set[str]] = {path: set() for path in files}
    for name, path in re.findall(r"\[(gw\d)\].*? (tests/\S+\.py)::", done.stdout):
        workers[path].add(name)
    assert all(workers.values()), done.stdout
    assert len(workers[files[0]]) == len(workers[files[1]]) == 1
