"""The Export page: plan files of both modes taken and refused, lines for every host, the file as a tree."""

import json
from html import escape
from pathlib import Path

import pytest

from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.cost.elastic.swarm_rules import under_rules_of
from hetplanner.launchers.hosts_file import Hosts, place_hosts, read_hosts
from hetplanner.launchers.registry import OVER_HOSTS, make_launcher
from hetplanner.launchers.torchrun import TorchrunLauncher
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plan.files.plan_files import plan_from_json
from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.derive import Derivation, derive_plan
from hetplanner.ui.export.host_files import FILES, host_file
from hetplanner.ui.export.model import (
    MAX_PLAN_BYTES,
    cli_lines,
    notebook_snippet,
    plan_text,
    shown_text,
    summary_text,
    torchrun_lines,
)
from hetplanner.ui.export.view import ExportView
from hetplanner.ui.plan.models.elastic import peer_lines, swarm_words
from hetplanner.ui.run.models.launch_form import TRAINING, LaunchForm
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.json_tree import MOST_ITEMS, tree_html
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, hosted, slow_swarm, swarm_plan
from tests.support.plans.grouped import grouped_plan, in_groups

SAMPLES = Path(__file__).resolve().parents[4] / "sample_clusters"


class NoService:
    jobs = ()

    def job(self, job_id):
        return None


class NoWorker:
    def ask(self, *args, **kwargs):
        raise AssertionError("nothing is looked at")


@pytest.fixture
def app(tmp_path):
    return PlannerApp(LaunchGuard("ABCD-EFGH-JKMN"), NoService(), SAMPLES, tmp_path, compute=NoWorker())


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


def test_by_hand_all_ranks_start_on_one_machine(plan):
    assert "--nproc-per-node=4" in torchrun_lines(plan)
    assert "--nproc-per-node=8" in torchrun_lines(grouped_plan()), "a process for each device of a group"
    assert "HETPLANNER_HOST" not in torchrun_lines(plan)


def test_every_host_has_the_line_that_the_launcher_prints(plan):
    lines = host_file(plan, "torchrun")
    for command in TorchrunLauncher().request(plan, Path("."), TrainConfig()).commands:
        assert command.script() in lines.splitlines()
        assert f"HETPLANNER_HOST={command.host} " in command.script()
    assert "# host host-2: rank 2 (d2)" in lines


def test_the_hosts_file_that_is_offered_reads_back_and_calls_each_host_by_its_name(plan, tmp_path):
    (tmp_path / "hosts.toml").write_text(host_file(plan, "ssh"))
    assert place_hosts(plan, read_hosts(tmp_path / "hosts.toml")) == place_hosts(plan, Hosts())
    odd = chain_plan([8], [5], cluster=hosted({"d0": 'a "b" é', "d1": "c"}))
    (tmp_path / "hosts.toml").write_text(host_file(odd, "ssh").replace("# ssh", "ssh", 1))
    assert list(read_hosts(tmp_path / "hosts.toml").hosts) == ['a "b" é', "c"]


@pytest.mark.parametrize("launcher", sorted(OVER_HOSTS))
def test_each_launcher_over_hosts_has_its_file_with_what_to_do(plan, launcher):
    text = host_file(plan, launcher)
    assert set(FILES) == set(OVER_HOSTS)
    if launcher in ("slurm", "kubernetes"):
        shown = [line for line in text.splitlines() if not line.startswith("# ")]
        made = make_launcher(launcher).request(plan, Path(plan.problem.workload.name), TrainConfig()).file
        assert shown == [line for line in made.splitlines() if line]
    assert launcher == "torchrun" or f"--launcher {launcher} --hosts hosts.toml" in text


def test_ranks_that_are_apart_on_one_host_are_started_by_one_line():
    apart = chain_plan([8, 8], [5], cluster=hosted({"d0": "a", "d1": "b", "d2": "a", "d3": "b"}))
    lines = host_file(apart, "torchrun")
    assert "# host a: ranks 0 (d0), 2 (d2)" in lines
    assert lines.count("HETPLANNER_HOST=") == 2


def test_a_host_whose_name_ssh_does_not_take_is_told():
    plan = chain_plan([8], [5], cluster=hosted({"d0": "a", "d1": "my box; rm"}))
    for launcher in ("torchrun", "slurm", "kubernetes"):
        lines = host_file(plan, launcher)
        assert lines.startswith("# hosts: 'my box; rm' is no name that ssh takes; list it in the hosts file")
        assert "HETPLANNER_HOST" not in lines


def test_the_tree_folds_cuts_and_escapes():
    text = tree_html({"<b>": "<img src=x>", "list": list(range(100)), "deep": {"a": {"b": None}}, "flat": [1, True]})
    assert "<img" not in text
    assert "<b>" not in text
    assert f"… {100 - MOST_ITEMS} more in the file" in text
    assert text.count("<details open") == 1
    assert "null" in text
    assert "true" in text


# -- elastic plans --------------------------------------------------------------------------------

SWARM = slow_swarm()


def give(app, plan=SWARM, name="swarm.json"):
    app.export.upload(name, plan_text(plan).encode())


def test_an_elastic_plan_is_in_hand_and_other_pages_have_a_steady_state_step_of_it(quiet):
    give(quiet)
    assert quiet.export.error == ""
    swarm = quiet.session.in_hand
    assert swarm == SWARM.replace(estimate=swarm.estimate)
    assert swarm.estimate.step_s > 0
    assert quiet.session.plan == quiet.plan.plan == quiet.simulate.original == steady_state_plan(swarm)
    assert quiet.plan.model_name == "tiny-gpt"
    assert quiet.explain.swarm is quiet.simulate.swarm is swarm
    assert swarm_words(swarm).startswith("3 stages × 2–3 peers at the start. Shown is a steady-state step of it")
    assert quiet.run.launch.rehearsal_kind == "swarm"


def test_an_elastic_plan_is_kept_found_after_a_reload_and_compared_by_its_steady_state_step(quiet, plan):
    give(quiet)
    give(quiet, plan, "fixed.json")
    assert quiet.session.in_hand == plan
    assert quiet.explain.swarm is None
    assert quiet.run.launch.rehearsal_kind == "pipeline"
    quiet.restore("export", "", "", shown="swarm")
    assert quiet.session.in_hand == SWARM.replace(estimate=quiet.session.elastic.estimate)
    kept = quiet.explain.kept
    assert {row["name"]: row["shape"] for row in kept.rows()}["swarm"] == "3 stages × 2–3 peers"
    kept.choose(["swarm", "fixed"])
    assert list(kept.compared()) == ["swarm (a swarm: its steady-state step, without peers that come and go)", "fixed"]
    quiet.explain.keep()
    assert kept.load(kept.names[0]) == quiet.session.elastic
    assert kept.names[0].startswith("tiny-gpt 3x3 ")
    assert kept.names[0].endswith(" swarm")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["stages"][1].update(peers=[]), "stages[1].peers: "),
        (lambda d: d["stages"][1]["peers"].append("d0"), "stages[1].peers[3]: 'd0' is there twice"),
        (lambda d: d["rebalancing"].update(policy="magic"), "rebalancing.policy: "),
        (lambda d: d["times"].update(silence="0 s"), "times.silence: "),
        (lambda d: d.update(activation_codec={"name": "topk", "ratio": 10.0}), "activation_codec: "),
        (lambda d: d.update(routes=[]), "routes"),
        (lambda d: [one.update(memory="1 KiB") for one in d["problem"]["cluster"]["devices"]], "does not fit"),
    ],
)
def test_a_broken_elastic_file_is_explained_and_the_swarm_in_hand_stays(quiet, change, words):
    give(quiet)
    before = quiet.session.in_hand
    data = json.loads(plan_text(SWARM))
    change(data)
    quiet.export.upload("bad.json", json.dumps(data).encode())
    assert quiet.export.error.startswith("bad.json")
    assert words in quiet.export.error
    assert quiet.session.in_hand is before
    assert quiet.explain.kept.names == ["swarm"]


def test_a_search_or_a_derived_plan_takes_the_place_of_a_swarm(quiet, plan):
    give(quiet)
    quiet.session.plan = quiet.session.plan  # taken again as a static plan
    assert quiet.session.elastic is None
    assert quiet.session.in_hand is quiet.session.plan


def test_a_swarm_is_proposed_with_its_peers_and_what_it_cannot_train_is_said_first(quiet):
    model = preset("tiny-llama", global_batch=8, micro_batch=1)  # without tied weights
    give(quiet, swarm_plan([1, 2], [3], workload=model, local_steps=4, outer=OuterOptimizer()))
    assert quiet.export.error == ""
    launch = quiet.run.launch
    launch.propose(quiet.session.in_hand)
    assert "hetplanner.swarm.launch.rehearse" in launch.proposal.request.script()
    assert (launch.proposal.config.steps, launch.proposal.config.checkpoint_every) == (200, 52), "whole rounds"
    form = LaunchForm(launch, TRAINING, offers=True)
    form.edit("steps", "201")
    assert form.errors["steps"].startswith("must be a multiple of 4 local steps, got 201")
    form.edit("steps", "200")
    form.edit("checkpoint_every", "50")
    assert "take 48 or 52" in form.errors["checkpoint_every"]
    launch.confirm()
    assert launch.proposal is not None, "nothing is launched that is wrong, or without the token"


def test_a_rehearsal_of_a_swarm_keeps_its_rules():
    rules = SWARM.replace(rebalancing=Rebalancing(policy="queue"), delayed_updates=True)
    small = slow_swarm((1, 1))
    made = under_rules_of(small, rules)
    assert (made.rebalancing, made.times, made.delayed_updates) == (rules.rebalancing, rules.times, True)
    assert made.stages == small.stages
    assert under_rules_of(small, None) is small


def test_the_page_shows_a_swarm_with_its_peers_and_its_own_lines(quiet, plan):
    view = ExportView(quiet)
    give(quiet)
    view.show()
    assert "a swarm of 3 stages × 2–3 peers at the start" in view.hint.view.object
    for stage, peers in peer_lines(SWARM):
        assert f"<b>{stage}</b> {peers}" in view.peers.object
    assert "elastic" in view.text.object
    cli, by_hand, notebook, _ = (pane.object for pane in view.snippets)
    files = {name: host_file(SWARM, name) for name in FILES}
    assert "[hosts." in files["ssh"]
    assert all("this launcher starts no swarm" in text for name, text in files.items() if name != "ssh")
    assert view.hosts.visible
    assert "--lifetime 6h" in cli
    assert "hetplanner peer join HOST:PORT" in by_hand
    assert "group" not in by_hand
    grouped = in_groups(SWARM, [2, 1] + [1] * (len(SWARM.peers) - 3) + [2])
    assert torchrun_lines(grouped).endswith("# a peer that is a group of devices: --tensor 2")
    assert "hp.load_elastic_plan" in notebook
    compile(notebook_snippet(SWARM), "snippet", "exec")
    assert json.loads(view._file().read())["format"] == "hetplanner/plan@2"
    give(quiet, plan, "fixed.json")
    view.show()
    assert view.peers.object == ""
    assert "--nproc-per-node" in view.snippets[1].object


def test_the_page_shows_and_gives_the_file_of_each_launcher_over_hosts(quiet, plan):
    quiet.session.plan = plan
    view = ExportView(quiet)
    for launcher, name in FILES.items():
        view.launchers._handle_msg(launcher)
        assert view.hosts.visible
        assert (view.hosts_file.filename, view.hosts_file.label) == (name, f"Download {name}")
        assert view.hosts_file.callback().read() == host_file(plan, launcher)
        assert escape(host_file(plan, launcher)[:200]) in view.snippets[3].object
