"""A run that goes on without hosts, and with them again: what its head plans, and what the agent does with that."""

import json
from pathlib import Path

import pytest

from hetplanner.errors import Infeasible, InvalidInput, Preempted
from hetplanner.hosts.changes import returning
from hetplanner.hosts.changes.next_plan import NEXT_FILE, NextPlan, load_next, make_next_plan, save_next
from hetplanner.hosts.changes.returning import ReturnWatch
from hetplanner.hosts.transport import Unreachable
from hetplanner.launchers.hosts_file import Hosts, PlacedHost
from hetplanner.launchers.interface import HostCommand, LaunchRequest
from hetplanner.launchers.launch_file import Launch, load_launch
from hetplanner.plan.files.checkpoints import checkpoint_folder
from hetplanner.plan.files.plan_files import load_plan, save_plan
from hetplanner.plan.placement import ranks_by_host
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.audit import audit_records
from hetplanner.runs.agent.successor import check_replan, successor_of
from hetplanner.runs.agent.supervisor import Supervisor
from hetplanner.runs.directory import find_run
from hetplanner.runs.run import Run
from tests.support.plans.factories import chain_plan, hosted, swarm_plan, tiny_workload
from tests.support.processes import patience

HOSTS = {"d0": "a", "d1": "b", "d2": "b", "d3": "c"}
PLAN = chain_plan([2, 2], [4], cluster=hosted(HOSTS), workload=tiny_workload(global_batch=8))
SETTINGS = TrainConfig(steps=10, max_restarts=2, replan=True)
OVER_SSH = Launch(launcher="ssh", hosts=Hosts())


def run_folder(path: Path, *, saved: bool = False) -> Path:
    path.mkdir()
    save_plan(PLAN, path / "plan.json")
    if saved:
        checkpoint_folder(path, 4).mkdir(parents=True)
        (checkpoint_folder(path, 4) / "manifest.json").write_text("{}")
    return path


# -- the plan for the hosts that are left ---------------------------------------------------------


def test_the_next_plan_does_without_the_hosts_that_are_away(tmp_path):
    first = run_folder(tmp_path / "run")
    assert set(ranks_by_host(make_next_plan(first, None, ("a",), seed=0))) <= {"b", "c"}
    assert make_next_plan(first, first, (), seed=0).digest() == PLAN.digest()
    with pytest.raises(Infeasible, match="stage 1 of the earlier run was on b, c alone"):
        make_next_plan(first, first, ("b", "c"), seed=0)
    assert set(ranks_by_host(make_next_plan(first, None, ("b", "c"), seed=0))) == {"a"}  # nothing was saved


def test_next_files_are_read_as_they_were_written_and_refused_when_damaged(tmp_path):
    assert load_next(tmp_path) is None
    found = NextPlan(attempt=1, away=("b",))
    save_next(tmp_path, found, PLAN)
    assert load_next(tmp_path) == found
    (tmp_path / NEXT_FILE).write_text('{"format": "hetplanner/next@1", "attempt": -1}')
    with pytest.raises(InvalidInput, match="attempt"):
        load_next(tmp_path)


# -- hosts that are back --------------------------------------------------------------------------


def test_a_host_is_back_once_nothing_is_wrong_with_it(monkeypatch, caplog):
    monkeypatch.setattr(returning, "LOOK_S", 0.001)
    caplog.set_level("INFO")
    looks = []

    def look(host: PlacedHost) -> list[str]:
        looks.append(host.name)
        if host.name == "c" or len(looks) < 5:
            raise Unreachable("cannot be reached")
        return ["has no torch"] if len(looks) < 9 else []

    watch = ReturnWatch([placed("b"), placed("c")], look)
    patience.until(lambda: watch.back)
    watch.close()
    assert watch.back == ("b",)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["host b: cannot be reached", "host c: cannot be reached", "host b: has no torch", "host b: is back"]


def placed(name: str) -> PlacedHost:
    return PlacedHost(name, 0, (0,), name, name, "python3", "~/runs", name, name)


# -- what goes on ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "launch", "restarts", "words"),
    [
        (PLAN, None, 1, "launcher local cannot plan again; use --launcher ssh"),
        (PLAN, Launch(launcher="slurm"), 1, "launcher slurm cannot plan again"),
        (PLAN, OVER_SSH, 0, "give --max-restarts 1 or more"),
        (swarm_plan([1, 1], [4]), OVER_SSH, 1, "a swarm continues without a lost host"),
    ],
)
def test_replan_is_refused_where_nothing_would_be_planned_anew(plan, launch, restarts, words):
    with pytest.raises(InvalidInput, match=words):
        check_replan(plan, SETTINGS.replace(max_restarts=restarts), launch)
    check_replan(plan, SETTINGS.replace(replan=False), launch)


@pytest.mark.parametrize("saved", [True, False])
def test_a_successor_has_the_restarts_that_are_left_and_the_latest_weights(tmp_path, saved):
    folder = run_folder(tmp_path / "run", saved=saved)
    assert successor_of(folder, SETTINGS, 0) is None
    save_next(folder, NextPlan(attempt=1, away=("b",)), PLAN)
    assert successor_of(folder, SETTINGS, 0) is None  # of another attempt
    plan, settings, launch = successor_of(folder, SETTINGS, 1)
    assert plan.digest() == PLAN.digest()
    assert settings == SETTINGS.replace(max_restarts=1, resume=str(folder) if saved else None)
    assert (launch.first, launch.away) == (str(folder), ("b",))
    save_next(folder, NextPlan(attempt=0, away=("b",)), PLAN)  # the loss was seen before the first step
    assert successor_of(folder, SETTINGS, 0)[1].max_restarts == 1
    assert successor_of(folder, SETTINGS.replace(max_restarts=0), 0) is None


class HostsLeave:
    """A launcher whose first run ends for another plan, as a head does; later ones finish."""

    name = "ssh"

    def __init__(self, away: tuple[str, ...] = ("a",)) -> None:
        self.away = away

    def __call__(self, name: str, hosts: Hosts) -> "HostsLeave":
        return self

    def request(self, plan, run_dir: Path, config: TrainConfig) -> LaunchRequest:
        argv = ("sh", "-c", "exit 0")
        if self.away:
            save_next(run_dir, NextPlan(attempt=0, away=self.away), PLAN)
            self.away = ()
            argv = ("sh", "-c", f"echo host a has not come back for 3 s; exit {Preempted.exit_code}")
        else:
            (run_dir / "model.safetensors").touch()
            (run_dir / "model.json").write_text(json.dumps({"steps_of_stages": [config.steps]}))
        return LaunchRequest(self.name, run_dir, (HostCommand("localhost", argv, {}, len(plan.ranks)),))


def test_the_agent_goes_on_under_the_next_plan_before_runs_that_wait(tmp_path):
    supervisor = Supervisor(tmp_path, launcher=HostsLeave())
    first = supervisor.submit(PLAN, SETTINGS, launch=OVER_SSH).run
    waiting = supervisor.submit(PLAN, SETTINGS.replace(replan=False), launch=OVER_SSH).run
    run = Run(find_run(first, tmp_path)[1].path, first, tmp_path)
    patience.until(lambda: supervisor.tick() or supervisor.status(first).is_over)
    status = supervisor.status(first)
    assert (status.state, status.restarts) == ("preempted", 0)
    assert status.message == (
        "preempted: host a has not come back for 3 s; there was nothing to save yet; goes on without a as run"
        f" {status.successor}"
    )
    patience.until(lambda: supervisor.tick() or supervisor.is_settled)
    after = run.successor()
    assert (after.id, after.status().state, after.successor()) == (status.successor, "finished", None)
    launch = load_launch(after.path)
    assert (launch.run, launch.first, launch.away) == (after.id, str(run.path), ("a",))
    assert load_plan(after.directory.plan_file).digest() == PLAN.digest()
    launched = [record.run for record in audit_records(tmp_path) if record.event == "launch"]
    assert launched == [first, after.id, waiting]


def test_a_next_plan_that_cannot_be_read_fails_the_run_with_why(tmp_path):
    supervisor = Supervisor(tmp_path, launcher=HostsLeave())
    first = supervisor.submit(PLAN, SETTINGS, launch=OVER_SSH).run
    (find_run(first, tmp_path)[1].path / "next-plan.json").write_text("[]")
    patience.until(lambda: supervisor.tick() or supervisor.is_settled)
    status = supervisor.status(first)
    assert (status.state, status.successor) == ("failed", None)
    assert "no other run continues it: " in status.message
