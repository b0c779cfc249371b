"""The Export page: plan files taken and refused, lines for every host, the file as a tree."""

import json
from pathlib import Path

import pytest
from factories import chain_plan, sites_cluster, small_cluster, tiny_workload

from hetplanner.plan.files import plan_from_json
from hetplanner.planners.derive import Derivation, derive_plan
from hetplanner.ui.access import LaunchGuard
from hetplanner.ui.models.app import PlannerApp
from hetplanner.ui.models.export import (
    MAX_PLAN_BYTES,
    cli_lines,
    host_groups,
    notebook_snippet,
    plan_text,
    shown_text,
    summary_text,
    torchrun_lines,
)
from hetplanner.ui.views.json_tree import MOST_ITEMS, tree_html

SAMPLES = Path(__file__).resolve().parents[2] / "sample_clusters"


class NoService:
    jobs = ()

    def job(self, job_id):
        return None


class NoDesk:
    def ask(self, *args, **kwargs):
        raise AssertionError("nothing is looked at")


@pytest.fixture
def app(tmp_path):
    return PlannerApp(LaunchGuard("ABCD-EFGH"), NoService(), SAMPLES, tmp_path, desk=NoDesk())


@pytest.fixture(scope="module")
def plan():
    return derive_plan(chain_plan([8, 8], [5]), Derivation())


@pytest.fixture
def quiet(app, monkeypatch):
    monkeypatch.setattr(app.explain.why, "explain", lambda plan: None)
    return app


def test_a_plan_file_becomes_the_plan_in_hand_and_is_kept(quiet, plan):
    quiet.export.upload("mine.json", plan_text(plan).encode())
    assert quiet.export.error == ""
    assert quiet.session.plan == plan
    assert quiet.plan.plan == plan
    assert quiet.explain.kept.names == ["mine"]
    assert quiet.explain.shown == "mine"
    quiet.export.upload("mine.json", plan_text(plan).encode())
    assert sorted(quiet.explain.kept.names) == ["mine", "mine 2"]


def test_a_file_without_an_estimate_gets_one(quiet, plan):
    quiet.export.upload("bare.json", plan_text(plan.replace(estimate=None)).encode())
    assert quiet.session.plan.estimate == plan.estimate


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["stages"][1].update(in_flight=0), "stages[1].in_flight: "),
        (lambda d: d.update(module="os:system"), "module"),
        (lambda d: d.update(format="hetplanner/plan@99"), "plan@99"),
        (lambda d: d["routes"][0].update(micro_batches=7), "routes: micro_batches must add up to 16"),
        (lambda d: d["problem"]["cluster"]["devices"][0].update(memory="1 KiB"), "does not fit"),
    ],
)
def test_a_broken_file_is_explained_and_the_plan_in_hand_stays(quiet, plan, change, words):
    quiet.session.plan = plan
    data = json.loads(plan_text(plan))
    change(data)
    quiet.export.upload("<b>bad</b>.json", json.dumps(data).encode())
    assert words in quiet.export.error
    assert quiet.export.error.startswith("<b>bad</b>.json")
    assert quiet.session.plan is plan
    assert quiet.explain.kept.names == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 5000, b" " * (MAX_PLAN_BYTES + 1)])
def test_what_is_no_plan_at_all_is_refused(quiet, content):
    quiet.export.upload("no.json", content)
    assert quiet.export.error.startswith("no.json")
    assert quiet.session.plan is None


def test_the_exported_text_reads_back_to_the_same_plan(plan):
    assert plan_from_json(plan_text(plan)) == plan
    assert shown_text(plan) == plan_text(plan)
    assert "hetplanner train plan.json --emulate-links" in cli_lines(plan)
    compile(notebook_snippet(plan), "snippet", "exec")
    assert summary_text(plan).startswith("test-gpt on small, 2 stages, 4 devices, 1f1b; by derived")


def test_every_host_has_its_line_with_the_ranks_in_order(plan):
    lines = torchrun_lines(plan)
    assert "--nproc-per-node=4" in lines
    for node in range(4):
        assert f"--nnodes=4 --node-rank={node} --nproc-per-node=1 --master-addr=$HEAD" in lines
    assert "# host host-2: rank 2 (d2)" in lines
    one = torchrun_lines(chain_plan([16], [], cluster=small_cluster(1)))
    assert "--master-addr" not in one


def test_ranks_that_are_apart_on_one_host_make_it_come_twice():
    cluster = sites_cluster([2, 2])
    hosts = {"d0": "h0-0", "d1": "h0-1", "d2": "h0-0", "d3": "h0-1"}
    devices = tuple(d.replace(host=hosts[d.id]) for d in cluster.devices)
    apart = chain_plan([8, 8], [5], cluster=cluster.replace(devices=devices), workload=tiny_workload(global_batch=32))
    assert host_groups(apart) == [("h0-0", [0]), ("h0-1", [1]), ("h0-0", [2]), ("h0-1", [3])]


def test_the_tree_folds_cuts_and_escapes():
    text = tree_html({"<b>": "<img src=x>", "list": list(range(100)), "deep": {"a": {"b": None}}, "flat": [1, True]})
    assert "<img" not in text
    assert "<b>" not in text
    assert f"… {100 - MOST_ITEMS} more in the file" in text
    assert text.count("<details open") == 1
    assert "null" in text
    assert "true" in text
