"""The command line prints names as files give them: no markup, no emoji, nothing that a terminal obeys."""

import json

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.cli.output import PlainConsole, bold, table
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.annotations import Annotations, write_annotations
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.status import RunStatus, write_status

NAMES = ("[/x]", "[red]B", "[link=file:///etc/passwd]c", ":smile:")


def cluster_file(folder):
    """Every name is one that Rich would take for markup."""
    sites = [{"name": name, "latitude": 0, "longitude": i} for i, name in enumerate(NAMES)]
    link = {"latency": "20 ms", "bandwidth": "1 Gbit/s"}
    fields = {
        "format": "hetplanner/cluster@1",
        "name": NAMES[0],
        "description": NAMES[1],
        "provenance": NAMES[0],
        "sites": sites,
        "devices": [{"id": f"{name} d", "kind": "T4", "site": name} for name in NAMES],
        "site_links": [{"from": a, "to": b} | link for a in NAMES for b in NAMES],
    }
    (folder / "c.json").write_text(json.dumps(fields))
    return str(folder / "c.json")


def said(*command):
    """What a command prints."""
    done = CliRunner().invoke(app, list(command))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_clusters_and_plans(tmp_path):
    """MarkupError: '[/x]' closed a tag that was not open; '[red]' was not shown."""
    cluster, plan = cluster_file(tmp_path), str(tmp_path / "plan.json")
    shown = said("cluster", "show", cluster)
    assert all(name in shown for name in NAMES)
    assert f"tiny-gpt on {NAMES[0]}:" in said("plan", cluster, "tiny-gpt", "--budget", "5 evaluations", "-o", plan)
    assert f"on {NAMES[0]}" in said("plan", cluster, "tiny-gpt", "--budget", "1", "--mode", "elastic")
    assert any(name in said("simulate", plan) for name in NAMES)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run in a home of its own whose words come from a stranger."""
    from tests.support.plans.factories import chain_plan

    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    name, directory = create_run_directory(chain_plan(shares=(16,), cuts=(4,)), TrainConfig(steps=1))
    message = "[/x] \x1b]0;title\x07"
    status = RunStatus(run=name, state="failed", created_unix_s=0.0, ranks=2, message=message, degraded=("[/y]",))
    write_status(directory.status_file, status)
    write_annotations(directory.path, Annotations(name="[/n]", notes="[/a] \x1b[31m\nb", tags=("[/t]",)))
    return name


def test_runs(run):
    assert all(name in said("runs", "list") for name in ("[/n] #[/t]", "[/x] \\x1b]0;title\\x07", "[/y]"))
    assert "[/x] \\x1b]0;title\\x07" in said("runs", "show", run)
    assert said("runs", "label", run) == f"{run}: [/n]\n#[/t]\n[/a] \\x1b[31m\nb\n"


def test_titles_cells_and_pieces_of_lines():
    console = PlainConsole(width=40, force_terminal=True, color_system=None)
    rows = table("[/title]", "[/column]")
    rows.add_row("[/cell] \x1b[2J")
    with console.capture() as printed:
        console.print(rows)
        console.print(bold("[/bold]\x07"), "[/rest]", "\u202ex")
    text = printed.get()
    assert all(name in text for name in ("[/title]", "[/column]", "[/cell] \\x1b[2J", "[/bold]\\x07", "\\u202ex"))
    assert not any(code in text for code in ("\x1b[2J", "\x07", "\u202e"))
