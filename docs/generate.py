"""Pages made from the code: commands, the Python API, schemas of files, benchmarks. Copies of the notebooks, too."""

import ast
import json
import shutil
from importlib import import_module
from inspect import ismodule
from pathlib import Path
from types import ModuleType

from typer.cli import get_docs_for_click
from typer.main import get_command

import hetplanner
from hetplanner.cli.app import app

HERE = Path(__file__).parent
OUT = HERE / "generated"
SCHEMAS = {
    "cluster": ("hetplanner.cluster.model", "Cluster"),
    "workload": ("hetplanner.workload.workload", "Workload"),
    "plan": ("hetplanner.plan.model", "Plan"),
    "elastic-plan": ("hetplanner.plan.elastic.model", "ElasticPlan"),
    "run": ("hetplanner.plan.train", "TrainConfig"),
    "hosts": ("hetplanner.launchers.hosts_file", "Hosts"),
    "links": ("hetplanner.cluster.measured", "Measured"),
    "profile": ("hetplanner.profiles.model", "Profile"),
}
"""Files that users keep or exchange: the class that each is read into."""


def everything() -> None:
    """Writes `docs/generated` anew."""
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "extra" / "schemas").mkdir(parents=True)
    (OUT / "commands.md").write_text(commands())
    (OUT / "python.md").write_text(python_api())
    (OUT / "benchmarks.md").write_text(benchmarks())
    for name, (module, noun) in SCHEMAS.items():
        schema = getattr(import_module(module), noun).model_json_schema(by_alias=True)
        (OUT / "extra" / "schemas" / f"{name}.json").write_text(json.dumps(schema, indent=1) + "\n")
    shutil.copytree(HERE.parent / "notebooks", OUT / "notebooks", ignore=shutil.ignore_patterns("*.py", ".*"))


def commands() -> str:
    """Every command, from its own help."""
    command = get_command(app)
    context = command.context_class(command, info_name="hetplanner")
    text: str = get_docs_for_click(obj=command, ctx=context, name="hetplanner")
    return "# Commands\n\n" + text.replace("# `hetplanner`\n", "", 1)


def python_api() -> str:
    """Every name of `import hetplanner as hp`, and every plot, with its docstring."""
    lines = ["# Python", "", "Names of `import hetplanner as hp`.", "", "```{eval-rst}"]
    lines += _entries(hetplanner, [name for name in hetplanner.__all__ if name != "plots"])
    lines += [
        "```",
        "",
        "## Plots",
        "",
        "Names of `hp.plots`. Figures for a notebook.",
        "",
        "```{eval-rst}",
    ]
    plots = import_module("hetplanner.plots")
    lines += [*_entries(plots, plots.__all__), "```", ""]
    return "\n".join(lines)


def benchmarks() -> str:
    """Every benchmark: its question and its command, as its docstring says them."""
    lines = [
        "# Benchmarks",
        "",
        "Every number in these pages comes from one of these. Each stands in `tests/benchmarks`.",
    ]
    for path in sorted((HERE.parent / "tests" / "benchmarks").glob("*/bench_*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if text is not None:
            lines += ["", f"## {path.stem.removeprefix('bench_').replace('_', ' ').capitalize()}", "", text]
    return "\n".join(lines) + "\n"


def _entries(package: ModuleType, names: list[str]) -> list[str]:
    lines = []
    for name in sorted(names, key=str.lower):
        found = getattr(package, name)
        if ismodule(found):
            continue
        kind = "autoclass" if isinstance(found, type) else "autofunction"
        lines += [f".. {kind}:: {package.__name__}.{name}", ""]
    return lines
