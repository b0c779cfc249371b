"""Commands that list what is known by name: model presets and device kinds."""

import json

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.cluster.catalog import device_kind, kind_names
from hetplanner.workload.presets import preset, preset_names
from tests.support.processes.imported import imported

LISTS = {"presets": ("workload", "presets"), "gpus": ("cluster", "gpus")}
NAMES = {"presets": preset_names, "gpus": kind_names}


def printed(*command):
    done = CliRunner().invoke(app, list(command))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("what", LISTS)
def test_every_known_name_has_a_line(what):
    rows = [line.split("  ")[0].strip() for line in printed(*LISTS[what]).splitlines()]
    assert [row for row in rows if row in NAMES[what]()] == list(NAMES[what]())


def test_the_lists_are_json_for_scripts():
    models = {row["name"]: row for row in json.loads(printed(*LISTS["presets"], "--json"))}
    assert tuple(models) == preset_names()
    assert models["gpt2"]["num_params"] == preset("gpt2").graph.num_params
    assert models["gpt2"]["reads_tokens"]
    assert not models["tiny-resnet"]["reads_tokens"]
    kinds = {row["name"]: row for row in json.loads(printed(*LISTS["gpus"], "--json"))}
    assert tuple(kinds) == kind_names()
    assert kinds["A100-80"]["memory_bytes"] == device_kind("A100-80").memory_bytes


@pytest.mark.parametrize("what", LISTS)
def test_a_list_imports_nothing_heavy(what):
    code = (
        "import contextlib, io; from hetplanner.cli.app import app\n"
        f"with contextlib.redirect_stdout(io.StringIO()): app({LISTS[what]!r}, standalone_mode=False)"
    )
    assert imported(code, "torch", "panel", "numba", "plotly") == []
