"""What a model's throughput counts is said in its own words: tokens, or samples of a model that reads none."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.plots.data.runs.run_overlays import value_label

LAB = str(Path(__file__).parents[3] / "sample_clusters" / "lab_2_sites_4.json")


@pytest.mark.parametrize(
    ("model", "word", "other"), [("tiny-resnet", "samples", "tokens"), ("tiny-gpt", "tokens", "samples")]
)
def test_a_plan_counts_what_its_model_reads(model, word, other):
    done = CliRunner().invoke(app, ["plan", LAB, model, "--planner", "rank-order", "--stages", "2", "--replicas", "2"])
    assert done.exit_code == 0, done.output
    assert f" {word}/s" in done.stdout
    assert f" per million {word}" in done.stdout
    assert other not in done.stdout


def test_the_axis_of_several_runs_names_all_that_they_count():
    assert value_label("throughput", {"tokens"}) == "tokens/s, running median"
    assert value_label("loss", {"tokens", "samples"}) == "loss (nats a sample or token)"
