"""Launching over hosts from the page, and runs that go on as others when hosts leave; no Panel, no browser."""

from types import SimpleNamespace

import pytest

from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.launchers.hosts_file import read_hosts
from hetplanner.launchers.launch_file import Launch, save_launch
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.allowed_paths import allowed_paths_file
from hetplanner.runs.agent.service import read_start_request
from hetplanner.runs.directory import find_run
from hetplanner.runs.status import read_status, write_status
from hetplanner.ui.run.models.launch_form import TRAINING, LaunchForm
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.launch import ConfirmDialog, command_words, proposal_words
from hetplanner.ui.run.views.page import RunView
from hetplanner.ui.run.views.run_list import RunList
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from tests.support.plans.factories import chain_plan, hosted, slow_swarm, tiny_workload
from tests.unit.ui.run.test_ui_run import checkpoint, make_run, run_model, settled
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, FakeService, errors

CLUSTER = hosted({"d0": "a", "d1": "b", "d2": "b", "d3": "c"})
PLAN = chain_plan([2, 2], [4], cluster=CLUSTER, workload=tiny_workload(global_batch=8))
SWARM = slow_swarm()
LAB, PARK = "lab, over ssh", "park, as a Slurm job"
REPLAN = "Go on without a lost host"


@pytest.fixture
def app(tmp_path):
    """A page whose agent offers two hosts files, one of them for Slurm too."""
    files = {
        "lab": 'format = "hetplanner/hosts@1"\nreturn_s = 20\n[hosts.a]\nssh = "me@a.lab"\n',
        "park": 'format = "hetplanner/hosts@1"\n[slurm]\noptions = ["--partition=gpu"]\n',
    }
    lines = ["[hosts]"]
    for name, text in files.items():
        lines.append(f'{name} = "{tmp_path}/{name}.toml"')
        (tmp_path / f"{name}.toml").write_text(text)
        (tmp_path / f"{name}.toml").chmod(0o600)
    allowed_paths_file(tmp_path).write_text("\n".join(lines))
    allowed_paths_file(tmp_path).chmod(0o600)
    made = PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, tmp_path)
    made.session.unlock(TOKEN)
    return made


@pytest.fixture
def model(app, tmp_path, monkeypatch):
    app.run = run_model(app, tmp_path, monkeypatch)
    return app.run


def form_of(model: RunModel) -> LaunchForm:
    return LaunchForm(model.launch, TRAINING, offers=True)


def fields_of(form: LaunchForm) -> dict[str, dict]:
    return {field["name"]: field for field in form.groups[0]["fields"]}


def options(form: LaunchForm) -> list[str]:
    return [value for value, _ in fields_of(form)["hosts"]["options"]]


# -- where it runs --------------------------------------------------------------------------------


def test_a_plan_is_launched_on_hosts_by_the_name_that_the_agent_offers(model):
    model.launch.propose(PLAN)
    form = form_of(model)
    assert options(form) == ["this machine", LAB, "park, over ssh", PARK]
    assert form.values["hosts"] == "this machine"
    assert "replan" not in fields_of(form)
    form.edit("hosts", LAB)
    proposal = model.launch.proposal
    assert (proposal.config.emulate_links, proposal.choice.hosts, proposal.disk.checkpoint) == (False, "lab", 0)
    words, commands = proposal_words(proposal), command_words(proposal)
    assert "<b>Runs on</b> 3 hosts of lab, over ssh: a, b, c" in words
    assert "Links emulated" not in words
    assert "<b>Host a</b> runs one process:" in commands
    assert "loopback interface only" not in commands
    assert "neither encrypted nor authenticated" in commands
    model.launch.confirm()
    settled(model)
    ((_, config, choice),) = model.fake_agent.started
    assert model.fake_agent.launchers == ["ssh"]
    assert (choice.hosts, config.emulate_links, config.replan) == ("lab", False, False)


def test_without_offers_and_for_a_rehearsal_there_is_nothing_to_choose(model, tmp_path):
    model.launch.propose(PLAN.replace(problem=PLAN.problem.replace(rehearsal_of="a larger one")))
    assert "hosts" not in fields_of(form_of(model))
    allowed_paths_file(tmp_path).unlink()
    model.launch.propose(PLAN)
    form = form_of(model)
    assert "hosts" not in fields_of(form)
    form.edit("hosts", LAB)
    form.edit("replan", True)
    assert (model.launch.hosts, model.launch.replan) == ("this machine", False)
    assert model.launch.proposal.request.launcher == "local"


def test_a_slurm_job_is_offered_where_the_hosts_file_has_its_options(model):
    model.launch.propose(PLAN)
    form = form_of(model)
    form.edit("hosts", PARK)
    words = command_words(model.launch.proposal)
    assert "Slurm is given this batch file" in words
    assert "#SBATCH --partition=gpu" in words
    assert "replan" not in fields_of(form)
    model.launch.confirm()
    settled(model)
    assert model.fake_agent.launchers == ["slurm"]
    body = b'{"plan": {}, "launcher": "slurm", "choice": {"hosts": "park"}}'
    with pytest.raises(InvalidInput, match=r"request.plan"):  # of the rest nothing is wrong
        read_start_request(body)
    with pytest.raises(InvalidInput, match="on hosts that the agent offers by name"):
        read_start_request(body.replace(b'{"hosts": "park"}', b"{}"))


def test_a_swarm_runs_on_hosts_by_ssh_alone(model):
    model.launch.propose(SWARM)
    form = form_of(model)
    assert options(form) == ["this machine", LAB, "park, over ssh"]
    form.edit("hosts", "park, over ssh")
    assert form.errors == {}
    words = proposal_words(model.launch.proposal)
    assert f"<b>Coordinator and trainers</b> on {model.launch.proposal.request.commands[0].host}" in words
    assert "hetplanner.swarm.launch.host_part" in command_words(model.launch.proposal)
    assert "replan" not in fields_of(form)
    model.launch.confirm()
    settled(model)
    assert model.fake_agent.launchers == ["ssh"]
    assert model.fake_agent.started[0][0] is SWARM


def test_a_plan_that_is_too_large_for_this_machine_is_proposed_on_hosts(model, monkeypatch):
    def refuse(plan, **settings):
        raise Infeasible("this machine cannot hold the run")

    monkeypatch.setattr("hetplanner.ui.run.models.launch.check_capacity", refuse)
    model.launch.propose(PLAN)
    form = form_of(model)
    assert form.values["hosts"] == LAB
    form.edit("hosts", "this machine")
    assert form.errors == {"hosts": "this machine cannot hold the run"}
    model.launch.confirm()
    assert model.fake_agent.started == []
    form.edit("hosts", LAB)
    assert form.errors == {}


def test_hosts_that_do_not_fit_say_why_beside_their_field_and_name_no_path(model, tmp_path):
    (tmp_path / "lab.toml").write_text('format = "hetplanner/hosts@1"\n[hosts.aa]\nssh = "me@a.lab"\n')
    model.launch.propose(PLAN)
    form = form_of(model)
    form.edit("hosts", LAB)
    assert form.errors["hosts"].startswith("hosts.aa: the cluster has no such host; did you mean")
    (tmp_path / "park.toml").write_text("[")
    form.edit("hosts", "park, over ssh")
    assert "park.toml: not TOML" in form.errors["hosts"]
    assert str(tmp_path) not in form.errors["hosts"]


def test_where_no_place_runs_the_plan_all_reasons_are_told(model, tmp_path, monkeypatch):
    def refuse(plan, **settings):
        raise Infeasible("this machine cannot hold the run")

    monkeypatch.setattr("hetplanner.ui.run.models.launch.check_capacity", refuse)
    for name in ("lab", "park"):
        (tmp_path / f"{name}.toml").write_text("[")
    with pytest.raises(Infeasible, match=r"^this machine cannot hold the run; lab, over ssh: lab.toml: not TOML"):
        model.launch.propose(PLAN)
    assert model.launch.proposal is None


def test_what_the_hosts_refuse_is_told_in_the_dialog(app, model):
    dialog = ConfirmDialog(app)
    model.launch.propose(PLAN)
    form_of(model).edit("hosts", LAB)
    model.fake_agent.error = InvalidInput("hosts: 1 problem on 3 hosts, nothing was started. [b] cannot be reached")
    dialog._confirm()
    assert (dialog.confirm.label, dialog.confirm.disabled) == ("Asking the hosts…", True)
    settled(model)
    assert (dialog.confirm.label, dialog.confirm.disabled) == ("Launch", False)
    assert "[b] cannot be reached" in dialog.refusal.view.object


# -- going on without a lost host -----------------------------------------------------------------


def test_to_go_on_without_a_lost_host_takes_a_restart(model):
    model.launch.propose(PLAN)
    form = form_of(model)
    form.edit("hosts", LAB)
    field = fields_of(form)["replan"]
    assert (field["label"], field["kind"], form.values["replan"]) == (REPLAN, "flag", False)
    form.edit("replan", True)
    assert (form.values["max_restarts"], model.launch.proposal.config.replan) == ("1", True)
    assert "<b>A lost host</b> the run waits 20 s for it" in proposal_words(model.launch.proposal)
    form.edit("max_restarts", "3")
    assert form.values["replan"] is True
    form.edit("max_restarts", "0")
    assert (form.values["replan"], model.launch.proposal.config.replan) == (False, False)
    form.edit("replan", True)
    model.launch.confirm()
    settled(model)
    ((_, config, _),) = model.fake_agent.started
    assert (config.replan, config.max_restarts) == (True, 1)


def test_a_run_on_this_machine_never_goes_on_without_hosts(model):
    model.launch.propose(PLAN)
    form = form_of(model)
    form.edit("hosts", LAB)
    form.edit("replan", True)
    for place in ("this machine", PARK):
        form.edit("hosts", place)
        assert form.errors == {}
        assert "replan" not in fields_of(form)
        assert not model.launch.proposal.config.replan


def test_ranks_on_hosts_can_have_several_connections_to_each_other(model):
    model.launch.propose(PLAN)
    form = form_of(model)
    assert "connections" not in fields_of(form)
    form.edit("hosts", LAB)
    form.edit("connections", "17")
    assert "1 to 16" in form.errors["connections"]
    form.edit("connections", "4")
    assert (form.errors, model.launch.proposal.config.connections) == ({}, 4)
    form.edit("hosts", "this machine")
    assert (form.errors, model.launch.proposal.config.connections) == ({}, 1)


def test_a_run_over_hosts_goes_on_there(app, model, tmp_path):
    config = TrainConfig(steps=10, max_restarts=2, replan=True)
    run_id = make_run(tmp_path, PLAN, "stopped", config)
    folder = tmp_path / "runs" / run_id
    checkpoint(folder, PLAN, 4)
    save_launch(Launch(launcher="ssh", hosts=read_hosts(tmp_path / "park.toml")), folder)
    model.beat()
    model.restart()
    form = form_of(model)
    assert options(form) == ["park, over ssh", LAB], "the file that it was launched with comes first"
    proposal = model.launch.proposal
    assert (proposal.choice.hosts, proposal.choice.resume, proposal.config.replan) == ("park", run_id, True)
    model.launch.dismiss()
    allowed_paths_file(tmp_path).unlink()
    model.restart()
    assert "restart: this run's hosts are not offered to pages" in errors(app)[-1]
    assert model.launch.proposal is None


def test_a_run_of_this_machine_goes_on_here(model, tmp_path):
    run_id = make_run(tmp_path, PLAN, "stopped")
    checkpoint(tmp_path / "runs" / run_id, PLAN, 4)
    model.launch.propose(PLAN)
    form_of(model).edit("hosts", LAB)
    model.launch.dismiss()
    model.beat()
    model.restart()
    assert "hosts" not in fields_of(form_of(model))
    assert model.launch.proposal.request.launcher == "local"


# -- runs that go on as others ----------------------------------------------------------------------

WHY = "preempted: host a has not come back for 180 s; saved after step 4; goes on without a as run {}"


def end_as(home, run_id: str, successor: str) -> None:
    path = find_run(run_id, home)[1].status_file
    changes = {"state": "preempted", "message": WHY.format(successor), "successor": successor}
    write_status(path, read_status(path).replace(**changes))


def test_who_watches_a_run_is_taken_to_the_one_that_goes_on(app, model, tmp_path):
    first = make_run(tmp_path, PLAN)
    model.select(first)
    model.section = "network"
    model.beat()
    second = make_run(tmp_path, PLAN, config=TrainConfig(steps=10, resume=str(tmp_path / "runs" / first)))
    end_as(tmp_path, first, second)
    model.beat()
    assert (model.selected, model.section) == (second, "network")
    assert app.session.notice == ("info", f"{WHY.format(second)}. It is shown now.")
    model.beat()
    assert (model.status.run, model.goes_on_from, model.goes_on_as) == (second, first, "")
    assert model.detail is not None
    model.select(first)  # to look back
    model.beat()
    model.beat()
    assert (model.selected, model.goes_on_as, model.goes_on_from) == (first, second, "")


def test_a_page_that_comes_late_goes_to_the_last_of_several(model, tmp_path):
    first, second, third = (make_run(tmp_path, PLAN) for _ in range(3))
    model.select(first)
    model.beat()
    end_as(tmp_path, second, third)
    end_as(tmp_path, first, second)
    model.beat()
    assert model.selected == third


def test_a_run_whose_successor_is_gone_stays(model, tmp_path):
    first = make_run(tmp_path, PLAN)
    model.select(first)
    model.beat()
    end_as(tmp_path, first, "20260101-000000-gone-0000")
    model.beat()
    assert (model.selected, model.goes_on_as) == (first, "")
    end_as(tmp_path, first, first)  # damaged
    model.beat()
    assert model.selected == first


def test_the_old_run_leads_to_the_new_one_and_is_not_called_lost(app, model, tmp_path):
    first, second = make_run(tmp_path, PLAN), make_run(tmp_path, PLAN)
    end_as(tmp_path, first, second)
    view = RunView(app)
    model.select(first)
    model.beat()
    assert {row.run: row.state for row in model.runs} == {first: "continued", second: "running"}
    assert view.metrics._content["State"] == ("continued", "4 ranks", "")
    assert (view.goes_on.label, view.goes_on.styles.get("display")) == (f"Goes on as {second}", None)
    assert view.came_from.styles["display"] == "none"
    view.goes_on.clicks += 1
    model.beat()
    assert model.selected == second
    assert view.came_from.label == f"Goes on from {first}"
    assert view.goes_on.styles["display"] == "none"
    view.came_from.clicks += 1
    assert model.selected == first
    table = RunList(model, app.session, False)
    table.show()
    assert set(table.table.value["state"]) == {"continued", "running"}


def test_the_next_run_has_its_name_where_it_has_one(model):
    model.runs = [SimpleNamespace(run="20260101-000000-m-ab12", name="long")]
    assert model.called("20260101-000000-m-ab12") == "long · ab12"
    assert model.called("other") == "other"
