"""The Run page's view-models: launching, watching, scrolling back, logs, text, reports; no Panel, no browser."""

import json
import os
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetplanner.errors import RunError
from hetplanner.liveness.processes import created_unix_s
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.runs.agent.allowed_paths import allowed_paths_file
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.home import agent_directory
from hetplanner.runs.reading.series import prices_of
from hetplanner.runs.status import RunStatus, read_status, write_status
from hetplanner.ui import watch
from hetplanner.ui.run.models.launch import OWN_DATA
from hetplanner.ui.run.models.launch_form import REHEARSAL, TRAINING, LaunchForm
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.away import seen_s
from hetplanner.ui.run.views.events import Events, _hit, event_list
from hetplanner.ui.run.views.launch import command_words, proposal_words
from hetplanner.ui.run.views.page import phase_chips
from hetplanner.ui.run.views.run_list import RunList
from hetplanner.ui.run.views.tables import html_table
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from tests.support.plans.factories import chain_plan, slow_swarm
from tests.support.runs.fake_ranks import phase, step_record, write
from tests.unit.runs.reading.test_runs_life import audit, span_line
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, FakeService, errors


@pytest.fixture
def app(tmp_path):
    return PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, tmp_path)


class FakeAgent:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.started: list = []
        self.launchers: list[str] = []
        self.stopped: list[str] = []
        self.error: Exception | None = None

    def start(self, plan, config, choice, launcher="local"):
        if self.error:
            raise self.error
        self.started.append((plan, config, choice))
        self.launchers.append(launcher)
        return SimpleNamespace(id=make_run(self.home, plan))

    def stop(self, run_id):
        self.stopped.append(run_id)


def make_run(home: Path, plan, state="running", config=None, **changes) -> str:
    run_id, directory = create_run_directory(plan, config or TrainConfig(steps=10), home=home)
    status = {"run": run_id, "state": state, "created_unix_s": 1000.0, "ranks": len(plan.ranks)} | changes
    write_status(directory.status_file, RunStatus(**status))
    return run_id


def let_an_agent_live(home: Path) -> None:
    holder = {"pid": os.getpid(), "version": "1", "began_s": created_unix_s(os.getpid())}
    (agent_directory(home) / "agent.json").write_text(json.dumps(holder))


def run_model(app: PlannerApp, home: Path, monkeypatch: pytest.MonkeyPatch) -> RunModel:
    """Looks at everything whenever it is asked to, and starts runs by an agent that only notes them."""
    for name in ("POLL_EVERY_S", "DETAIL_EVERY_S", "LIST_EVERY_S"):
        monkeypatch.setattr(watch, name, -1.0)
    let_an_agent_live(home)
    agent = FakeAgent(home)
    made = RunModel(app.session, app.plan._service, home, agent=lambda: agent)
    made.fake_agent = agent
    return made


@pytest.fixture
def model(app, tmp_path, monkeypatch):
    return run_model(app, tmp_path, monkeypatch)


def settled(model: RunModel) -> None:
    deadline = time.monotonic() + 30
    while model.launch.calls or model.text.calls:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        model.beat()


def plan_2() -> object:
    return chain_plan([16], [5])


def plan_4() -> object:
    return chain_plan([8, 8], [5])


# -- launching ------------------------------------------------------------------------------------


def test_a_rehearsal_is_planned_anew_proposed_and_launched_only_with_the_token(app, model):
    model.launch.prepare_rehearsal(app.plan.problem())
    assert model.launch.preparing
    job = app.plan._service.jobs[0]
    assert job.request.problem.rehearsal_of == "gpt3-xl on dtfm_5_worldwide"
    job.plan, job.state = plan_4(), "done"
    model.beat()
    proposal = model.launch.proposal
    assert proposal is not None
    assert not model.launch.preparing
    assert proposal.config.emulate_links
    assert "hetplanner.runtime.launch" in proposal.request.script()
    model.launch.confirm()
    assert "launch token" in errors(app)[-1]
    assert model.fake_agent.started == []
    app.session.unlock(TOKEN)
    model.launch.confirm()
    settled(model)
    ((_, config, choice),) = model.fake_agent.started
    assert (config.data, config.resume, choice.data, choice.resume) == (None, None, None, None)
    assert model.launch.proposal is None
    assert model.selected == model.runs[0].run
    assert app.session.plan is job.plan


def test_a_rehearsal_as_a_swarm_proposes_its_elastic_plan_and_leaves_the_plan_in_hand(app, model):
    LaunchForm(model.launch, REHEARSAL).edit("rehearsal_kind", "swarm")
    model.launch.prepare_rehearsal(app.plan.problem())
    job, before = app.plan._service.jobs[0], app.session.plan
    assert (job.request.planner, dict(job.request.settings)) == ("swarm", {"mode": "elastic"})
    found = make_planner("swarm", {"mode": "elastic"}).solve(job.request.problem, seed=0, budget=Budget(evaluations=1))
    job.plan, job.elastic, job.state = found.plan, found.elastic, "done"
    model.beat()
    proposal = model.launch.proposal
    assert proposal is not None
    assert proposal.is_rehearsal
    assert "hetplanner.swarm.launch.rehearse" in proposal.request.script()
    words = proposal_words(proposal)
    assert "2 stages × 2 peers" in words
    assert "<b>Disk</b>" in words
    assert "are free on the disk of" in words
    assert "<b>Warning</b>" not in words
    assert "peers leave and join" in words
    assert app.session.plan is before
    app.session.unlock(TOKEN)
    model.launch.confirm()
    settled(model)
    assert model.fake_agent.started[0][0] is found.elastic


def test_a_rehearsal_of_the_swarm_in_hand_is_a_swarm_under_its_rules(app, model):
    app.session.take(slow_swarm().replace(delayed_updates=True))
    assert model.launch.rehearsal_kind == "swarm"
    model.launch.prepare_rehearsal(app.session.plan.problem, like=app.session.elastic)
    job = app.plan._service.jobs[0]
    found = make_planner("swarm", {"mode": "elastic"}).solve(job.request.problem, seed=0, budget=Budget(evaluations=1))
    job.plan, job.elastic, job.state = found.plan, found.elastic, "done"
    model.beat()
    made = model.launch.proposal.plan
    assert made.problem == job.request.problem
    assert made.delayed_updates
    assert made.times == app.session.elastic.times
    assert app.session.in_hand.problem.rehearsal_of is None, "the swarm itself stays in hand"


def test_a_rehearsal_that_cannot_be_planned_is_a_notice(app, model):
    model.launch.prepare_rehearsal(app.plan.problem())
    job = app.plan._service.jobs[0]
    job.state, job.message = "failed", "search: the worker process ended"
    model.beat()
    assert errors(app) == ["search: the worker process ended"]
    assert not model.launch.preparing


def test_an_agent_that_refuses_is_a_notice_and_the_proposal_stays(app, model):
    app.session.unlock(TOKEN)
    model.launch.propose(plan_4())
    model.fake_agent.error = RunError("the queue is full")
    model.launch.confirm()
    settled(model)
    assert errors(app) == ["the queue is full"]
    assert model.launch.proposal is not None
    assert not model.launch.launching


def test_settings_change_the_open_proposal_and_what_is_wrong_stands_beside_its_field(app, model):
    model.launch.propose(plan_4())
    form = LaunchForm(model.launch, TRAINING, offers=True)
    form.edit("steps", "77")
    form.edit("learning_rate", "0.01")
    form.edit("lr_schedule", "cosine")
    form.edit("checkpoints_async", True)
    assert model.launch.proposal.config.checkpoints_async
    form.edit("checkpoint_every", "")
    config = model.launch.proposal.config
    assert not config.checkpoints_async, "there is nothing to write"
    assert (config.steps, config.learning_rate) == (77, 0.01)
    assert (config.lr_schedule, config.checkpoint_every) == ("cosine", None)
    wrong = (
        ("steps", "many"),
        ("learning_rate", "0"),
        ("learning_rate", "1e308"),
        ("lr_schedule", "exec"),
        ("seed", "-1"),
        ("data", "/etc/passwd"),
        ("output", "../.."),
        ("emulate_links", "x"),
    )
    for name, raw in wrong:
        form.edit(name, raw)
        if name != "emulate_links":
            assert "must be" in form.errors[name], name
            assert form.values[name] == raw, "what was typed stays"
    assert form.refusal().startswith("Steps: must be a whole number")
    assert model.launch.proposal.config == config, "the last good state"
    form.edit("steps", "78")
    assert "steps" not in form.errors
    assert model.launch.proposal.config.steps == 78


def test_data_are_names_of_the_agents_file_and_never_paths(app, model, tmp_path):
    file = allowed_paths_file(tmp_path)
    file.write_text('[data]\nmine = "/data/mine.txt"\n[output]\nscratch = "/scratch"\n')
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    app.session.unlock(TOKEN)
    model.launch.propose(plan_4())
    form = LaunchForm(model.launch, TRAINING, offers=True)
    options = {f["name"]: [value for value, _ in f["options"]] for f in form.groups[0]["fields"]}
    assert options["data"] == [OWN_DATA, "mine"]
    form.edit("data", "mine")
    form.edit("output", "scratch")
    model.launch.confirm()
    settled(model)
    ((_, config, choice),) = model.fake_agent.started
    assert (choice.data, choice.output, config.data) == ("mine", "scratch", None)
    file.write_text("[data\n")
    model.launch.propose(plan_4())
    assert "agent.toml: not TOML" in errors(app)[-1]
    assert model.launch.data == OWN_DATA


def checkpoint(folder: Path, plan, step: int, seed: int = 0) -> None:
    place = folder / "checkpoints" / f"step-{step:08d}"
    place.mkdir(parents=True)
    ranks = [{"file": "rank-0.safetensors", "bytes": 1, "sha256": "0" * 64}]
    manifest = {"format": "hetplanner/checkpoint@1", "step": step, "plan": plan.digest(), "seed": seed, "ranks": ranks}
    (place / "manifest.json").write_text(json.dumps(manifest))


def test_a_run_that_is_over_goes_on_from_its_checkpoint_with_its_own_settings(app, model, tmp_path):
    app.session.unlock(TOKEN)
    plan = plan_2()
    old = TrainConfig(steps=10, seed=7, learning_rate=0.02, emulate_links=True, clip_norm=1.0)
    run_id = make_run(tmp_path, plan, "stopped", old)
    model.beat()
    assert not model.can_restart
    model.restart()
    assert "holds no checkpoint" in errors(app)[-1]
    checkpoint(tmp_path / "runs" / run_id, plan, 4, seed=7)
    write_status(tmp_path / "runs" / run_id / "status.json",
                 RunStatus(run=run_id, state="stopped", message="again", created_unix_s=1.0, ranks=2))  # fmt: skip
    model.beat()
    assert (model.can_restart, model.checkpoint) == (True, 4)
    model.restart()
    proposal = model.launch.proposal
    assert (proposal.done, proposal.choice.resume, proposal.config.steps) == (4, run_id, 10)
    assert (proposal.config.seed, proposal.config.learning_rate, proposal.config.clip_norm) == (7, 0.02, 1.0)
    assert (proposal.config.resume, proposal.config.data) == (None, None), "a page sends names, not paths"
    form = LaunchForm(model.launch, TRAINING, offers=True)
    assert form.disabled == ["seed", "data"]
    assert "Goes on from" in proposal_words(proposal)
    form.edit("steps", "3")
    assert "leave nothing to do" in form.errors["steps"]
    model.launch.confirm()
    assert model.fake_agent.started == []
    form.edit("steps", "12")
    assert form.errors == {}
    model.launch.confirm()
    settled(model)
    assert model.fake_agent.started[0][2].resume == run_id


def test_a_finished_run_is_given_more_steps_and_foreign_data_is_refused(app, model, tmp_path):
    plan = plan_2()
    run_id = make_run(tmp_path, plan, "finished")
    checkpoint(tmp_path / "runs" / run_id, plan, 10)
    model.beat()
    model.restart()
    assert model.launch.proposal.config.steps == 20
    model.launch.dismiss()
    save_config(TrainConfig(steps=10, data="/secret/text"), tmp_path / "runs" / run_id / "run.json")
    fresh = RunModel(app.session, app.plan._service, tmp_path)
    fresh.beat()
    fresh.watch.reader.__dict__.pop("config", None)
    fresh.restart()
    assert "not offered to pages" in errors(app)[-1]
    assert fresh.launch.proposal is None


def test_the_rehearsals_shape_has_fields_too(model):
    form = LaunchForm(model.launch, REHEARSAL)
    form.edit("rehearsal_stages", "99")
    assert form.errors["rehearsal_stages"] == "must be from 1 to 16, got 99"
    form.edit("rehearsal_stages", "4")
    assert model.launch.rehearsal_stages == 4


# -- watching -------------------------------------------------------------------------------------


def test_runs_of_the_home_are_found_newest_first_and_bad_ones_do_not_hide_them(app, model, tmp_path):
    first = make_run(tmp_path, plan_4(), "finished", created_unix_s=1.0)
    second = make_run(tmp_path, plan_4(), "running", rehearsal=True)
    (tmp_path / "runs" / second / "status.json").write_text("{")
    model.beat()
    assert {row.run: row.state for row in model.runs} == {first: "finished", second: "unknown"}
    model.select(first)
    model.beat()
    assert model.status.state == "finished"
    model.select("../../etc/passwd")
    assert model.selected == first


def test_without_an_agent_a_run_whose_processes_are_gone_is_said_to_be_lost(app, model, tmp_path):
    make_run(tmp_path, plan_2())
    (tmp_path / "agent" / "agent.json").unlink()
    model.beat()
    assert model.status.state == model.runs[0].state == "failed"
    assert "its processes have ended" in model.status.message


def test_stop_needs_the_token_and_a_live_run(app, model, tmp_path):
    run_id = make_run(tmp_path, plan_4())
    model.beat()
    model.stop()
    assert model.fake_agent.stopped == []
    assert errors(app)[-1].startswith("stop: type the launch token")
    app.session.unlock(TOKEN)
    model.stop()
    settled(model)
    assert model.fake_agent.stopped == [run_id]


def test_stop_asks_once_and_its_buttons_keep_their_places(app, model, tmp_path):
    run_id = make_run(tmp_path, plan_4())
    app.session.unlock(TOKEN)
    model.beat()
    model.ask_to_stop()
    assert model.stop_asked
    model.keep_running()
    assert (model.stop_asked, model.fake_agent.stopped) == (False, [])
    model.ask_to_stop()
    model.stop()
    settled(model)
    assert (model.stop_asked, model.fake_agent.stopped) == (False, [run_id])
    model.ask_to_stop()
    make_over(tmp_path, run_id)
    model.beat()
    assert not model.stop_asked, "a run that is over asks for nothing"
    model.ask_to_stop()
    assert not model.stop_asked


def make_over(home: Path, run_id: str) -> None:
    file = home / "runs" / run_id / "status.json"
    write_status(file, read_status(file).replace(state="finished", ended_unix_s=2000.0))


def test_a_run_is_named_found_and_laid_over_others(app, model, tmp_path):
    first, second = (make_run(tmp_path, plan_2(), "finished") for _ in range(2))
    for run_id in (first, second):
        grow(tmp_path / "runs" / run_id, range(3))
    model.beat()
    model.select(first)
    model.said.param.update(name_text="<b>warm</b>", tags_text="x, y", notes="a")
    model.save_annotations()
    assert "token" in model.said.refusal
    app.session.unlock(TOKEN)
    model.save_annotations()
    assert model.said.refusal == ""
    model.wanted = ("WARM", "y", "finished")
    assert [row.name for row in model.found_runs()] == ["<b>warm</b>"]
    model.said.tags_text = "z" * 41
    model.save_annotations()
    assert "tags" in model.said.refusal
    model.select(second)
    assert model.said.name_text == ""
    model.overlay.runs = [first, second, "../x"]
    assert model.overlay.runs == [first, second]
    assert [(name, list(columns["x"])) for name, columns in model.overlay.lines()] == [
        ("<b>warm</b>", [0, 1, 2]),
        (second, [0, 1, 2]),
    ]
    model.overlay.over = "dollars"
    rate = prices_of(plan_2()).usd_per_s
    assert [list(columns["x"]) for _, columns in model.overlay.lines()] == [[0.5 * rate, 1.5 * rate, 2.5 * rate]] * 2
    assert len(model.overlay.csv().splitlines()) == 7
    page = RunList(model, model.session, dark=False)
    page.show()
    assert list(page.table.value["name"]) == ["<b>warm</b>"]


def grow(folder: Path, steps: range, num_ranks: int = 2) -> None:
    for rank in range(num_ranks):
        for step in steps:
            write(folder, rank, span_line(step) | {"rank": rank}, step_record(rank, step, num_ranks, step + 0.5))


def test_steps_phases_and_logs_appear_as_the_directory_grows(model, tmp_path):
    run_id = make_run(tmp_path, plan_2())
    folder = tmp_path / "runs" / run_id
    model.beat()
    assert model.reached["training"] == 0
    seen = []
    model.param.watch(lambda *events: seen.append(1), "steps_changed")
    for rank in range(2):
        write(folder, rank, phase("training") | {"time_s": 1001.0}, {"type": "origin", "unix_s": 1002.0})
    grow(folder, range(1))
    (folder / "log-0.txt").write_text("hello\nwor")
    model.beat()
    (line,) = model.log.lines
    assert line.endswith("step 1  loss 5.0000"), "a line a step, though no rank has printed one"
    model.log.rank = "0"
    model.beat()
    assert seen == [1]
    assert model.reached["training"] == 2
    assert len(model.reader.losses()) == 1
    assert list(model.log.lines) == ["hello", "wor"]
    with (folder / "log-0.txt").open("a") as file:
        file.write("ld\nend\n")
    model.beat()
    assert seen == [1], "nothing new, nothing redrawn"
    assert list(model.log.lines) == ["hello", "world", "end"]


def test_a_live_run_that_writes_nothing_is_said_to_be_silent(model, tmp_path):
    grow(tmp_path / "runs" / make_run(tmp_path, plan_2()), range(2))
    model.beat()
    assert model.silent_s() is None
    seen = []
    model.param.watch(lambda event: seen.append(model.silent_s()), "phase_changed")
    model.watch.heard_s -= 30
    model.beat()
    model.beat()
    assert len(seen) == 1
    assert seen[0] == pytest.approx(30, abs=5)


def test_a_failed_run_opens_its_events_and_the_log_of_the_rank_that_died(model, tmp_path):
    run_id = make_run(tmp_path, plan_2())
    other = make_run(tmp_path, plan_2(), "finished")
    model.select(run_id)
    folder = tmp_path / "runs" / run_id
    (folder / "log-1.txt").write_text("last words\n")
    model.beat()
    assert list(model.log.lines) == []
    write(folder, 1, {"type": "error", "text": "ValueError: bad", "traceback": "", "time_s": 1003.0})
    over = {"state": "failed", "failed_rank": 1, "message": "rank 1 died", "created_unix_s": 1.0, "ranks": 2}
    write_status(folder / "status.json", RunStatus(run=run_id, **over))
    model.beat()
    assert model.section == "events"
    assert model.log.rank == "1"
    assert list(model.log.lines) == ["last words"]
    assert [(e.kind, e.rank) for e in model.detail.events if e.kind == "error"] == [("error", 1)]
    model.select(other)
    model.beat()
    assert model.section == "progress", "a failure opened the events, another run does not have to begin there"


def test_pages_that_watch_one_run_share_its_reader_which_goes_with_the_last(app, model, tmp_path):
    run_id = make_run(tmp_path, plan_2())
    other = RunModel(app.session, app.plan._service, tmp_path)
    model.beat()
    other.beat()
    assert model.watch is other.watch
    grow(tmp_path / "runs" / run_id, range(3))
    model.beat()
    assert len(other.reader.steps()) == 3
    model.select(make_run(tmp_path, plan_2()))
    kept = watch.watch_run(tmp_path, run_id)
    assert kept is other.watch
    del kept
    other.param.update(selected="")
    assert (tmp_path, run_id) not in watch._watches


def test_logs_are_searched_in_all_ranks_and_lead_back_to_following(model, tmp_path):
    folder = tmp_path / "runs" / make_run(tmp_path, plan_2())
    (folder / "log-0.txt").write_text("a\nan ERROR here\n")
    (folder / "log-1.txt").write_text("error too\n")
    model.beat()
    model.log.words = "error"
    assert [(h.source, h.number) for h in model.log.hits] == [("0", 2), ("1", 1)]
    model.log.everywhere = False
    model.log.rank = "0"
    assert [h.source for h in model.log.hits] == ["0"]
    model.log.words = ""
    model.beat()
    assert model.log.hits == []
    assert list(model.log.lines) == ["a", "an ERROR here"]


def test_the_first_run_of_an_open_page_offers_the_logs_of_its_ranks(model, tmp_path):
    events = Events(model, model.session, dark=False)
    events.view.get_root()
    assert model.log.rank == events.rank.value == "steps"
    model.select(make_run(tmp_path, plan_4()))
    assert model.log.rank == events.rank.value == "steps"
    assert list(events.rank.options.values()) == ["steps", "0", "1", "2", "3", "launcher"]
    events.rank.value = "3"
    model.select(make_run(tmp_path, plan_2()))
    assert model.log.rank == events.rank.value == "steps"
    assert list(events.rank.options) == ["steps", "rank 0", "rank 1", "launcher"]


def test_the_timeline_follows_pauses_and_goes_back(model, tmp_path):
    folder = tmp_path / "runs" / make_run(tmp_path, plan_2())
    grow(folder, range(10))
    model.beat()
    replay = model.replay
    assert replay.trace is None, "nobody looks at it"
    model.section = "timeline"

    def shown() -> list[int]:
        return sorted({span.step for span in replay.trace.spans})

    assert (shown(), replay.following) == ([7, 8, 9], True)
    replay.earlier()
    assert (shown(), replay.following) == ([4, 5, 6], False)
    grow(folder, range(10, 14))
    model.beat()
    assert (shown(), replay.last) == ([4, 5, 6], 13), "paused: it stays"
    replay.step = 2
    assert shown() == [0, 1, 2]
    replay.earlier()
    assert shown() == [0, 1, 2], "there is nothing before"
    replay.later()
    assert shown() == [3, 4, 5]
    replay.count = 2
    assert shown() == [4, 5]
    replay.following = True
    assert shown() == [12, 13]


# -- while the page was closed ------------------------------------------------------------------------


def test_what_happened_while_the_page_was_closed_is_told_once_for_each_run(model, tmp_path):
    now = time.time()
    common = {"uid": 0, "directory": "d"}
    audit(
        tmp_path,
        {"time_s": now - 500, "event": "submit", "run": "a"} | common,
        {"time_s": now - 90, "event": "restart", "run": "a", "why": "rank 1 died"} | common,
        {"time_s": now - 80, "event": "end", "run": "a", "state": "failed", "message": "<b>bad</b>"} | common,
        {"time_s": now - 70, "event": "stop", "run": "b"} | common,
        {"time_s": now - 60, "event": "end", "run": "b", "state": "stopped", "message": "stopped"} | common,
    )
    model.closed_since(now - 100)
    assert [(r.run, r.text) for r in model.news] == [("a", "failed: <b>bad</b>"), ("b", "stopped")]
    model.dismiss_news()
    assert model.news == []
    fresh = RunModel(model.session, model.launch._service, tmp_path)
    fresh.closed_since(now - 2)
    assert (fresh.news, fresh.closed_s) == ([], None), "that was a reload"


@pytest.mark.parametrize(("text", "time_s"), [("1700000000", 1.7e9), ("", None), ("nan", None), ("-5", None),
                                              ("1e999", None), ("<b>", None), ("9" * 5000, 1e20)])  # fmt: skip
def test_a_cookie_is_a_time_or_nothing(text, time_s):
    assert seen_s(text) == (None if time_s is None else pytest.approx(time_s))


# -- text and report ----------------------------------------------------------------------------------


SAMPLER = """
import sys
text = sys.stdin.buffer.read().decode()
if "refuse" in text:
    sys.stderr.write("model: knows no text\\n")
    raise SystemExit(2)
sys.stdout.write(text + " and so on " + " ".join(sys.argv[2:]))
"""


@pytest.fixture
def sampler(tmp_path, monkeypatch):
    (tmp_path / "fake_sampler.py").write_text(SAMPLER)
    monkeypatch.setattr("hetplanner.runs.sampling.SAMPLER_MODULE", "fake_sampler")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def test_text_is_made_in_a_process_of_its_own_and_only_when_unlocked(app, model, tmp_path, sampler):
    run_id = make_run(tmp_path, plan_2(), "finished")
    model.beat()
    assert not model.has_model
    (tmp_path / "runs" / run_id / "model.safetensors").write_bytes(b"weights")
    assert model.has_model
    text = model.text
    text.generate()
    assert "launch token" in text.error
    app.session.unlock(TOKEN)
    text.param.update(prompt="--tokens=9; `rm` $(x)\0\n", tokens=5)
    text.generate()
    assert text.busy
    settled(model)
    assert text.error == ""
    assert text.text == "--tokens=9; `rm` $(x)\0\n and so on --stdin --tokens=5 --temperature=0.8 --seed=0"
    text.prompt = "refuse"
    text.generate()
    settled(model)
    assert text.error == f"run {run_id}: model: knows no text"
    assert not text.busy


def test_a_report_is_made_outside_of_this_process(model, tmp_path):
    run_id = make_run(tmp_path, plan_2(), "finished")
    model.select(run_id)
    page = model.report().result(120)
    assert page.startswith(b"<!DOCTYPE html>")
    assert run_id.encode() in page
    model.reader.directory.plan_file.write_text("{")
    with pytest.raises(RunError, match="report: "):
        model.report().result(120)


def test_the_dialog_says_where_other_users_reach_the_run(model, monkeypatch):
    for why, is_said in ((None, False), ("namespaces: Operation not permitted", True)):
        monkeypatch.setattr("hetplanner.launchers.local.why_open", lambda why=why: why)
        model.launch.propose(plan_2())
        said = command_words(model.launch.proposal)
        assert ("<b>Warning</b> the machine&#x27;s other users reach this run" in said) == is_said
        assert ("Operation not permitted" in said) == is_said


# -- HTML that is made of others' words -----------------------------------------------------------------


def test_what_others_wrote_is_never_markup(app, model, tmp_path):
    hostile = "<img src=x onerror=alert(1)>"
    plan = plan_2()
    evil = plan.replace(problem=plan.problem.replace(rehearsal_of=hostile))
    model.launch.propose(evil)
    events = [SimpleNamespace(time_s=1.0, kind="error", rank=1, text=hostile)]
    status = RunStatus(run="r", state="starting", created_unix_s=1.0, ranks=2, rehearsal=True)
    for made in (
        proposal_words(model.launch.proposal),
        command_words(model.launch.proposal),
        event_list(events, 0.5),
        _hit(hostile, 1, f"{hostile} {hostile}", "IMG"),
        html_table([hostile], [[hostile]]),
        phase_chips({"training": 1}, status),
    ):
        assert "<img" not in made
    assert "while the page was closed" in event_list(events, 0.5)
    assert "while the page was closed" not in event_list(events, 2.0)
    assert "float32" in proposal_words(model.launch.proposal), "the precision is shown"


@pytest.mark.parametrize("state", ["preempted", "failed", "stopped", "finished"])
def test_ranks_that_are_done_do_not_mark_a_run_as_done(state):
    status = RunStatus(run="r", state="running", created_unix_s=1.0, ranks=2, rehearsal=True)
    assert "done" in phase_chips({"training": 2, "done": 2}, status)
    made = phase_chips({"training": 2, "done": 2}, status.replace(state=state))
    assert "done" not in made
    assert "REHEARSAL" in made


def test_a_proposal_that_does_not_fit_on_the_disk_says_so(app, model, monkeypatch):
    monkeypatch.setattr("hetplanner.launchers.disk.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    model.launch.propose(plan_4())
    words = proposal_words(model.launch.proposal)
    assert "<b>Warning</b> the run does not fit" in words
