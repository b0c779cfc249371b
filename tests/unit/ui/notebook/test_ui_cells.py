"""Live views in a notebook: what they show, what they send, what they leave behind."""

import gc
import os
import threading
from types import SimpleNamespace
from typing import Any

import IPython.display
import ipywidgets
import pytest

import hetplanner as hp
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import Preempted
from hetplanner.liveness.processes import created_unix_s
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.interface import Budget, SearchEvent
from hetplanner.planners.search.population import LOADING
from hetplanner.runs.directory import RunDirectory, create_run_directory
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.ui.notebook import cell_views, cells
from hetplanner.ui.notebook.cell_views import RunCell, RunFace, RunState, SearchCell, SearchFace, SearchState
from tests.support.plans.factories import chain_plan

PLAN = chain_plan([6, 5, 5], [3, 5, 7])
ESTIMATED = PLAN.replace(estimate=estimate_plan(PLAN))
PLACEMENT = tuple(tuple(device for (device,) in stage.replicas) for stage in PLAN.stages)


def event(seconds: float, best: float, phase: str = "evolve") -> SearchEvent:
    quantiles = best, 1.2 * best, 2 * best
    return SearchEvent(best, *quantiles, int(100 * seconds), seconds, PLACEMENT, phase, searched_s=seconds)


class Output:
    """Stands for a cell's output."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.updates: list[str] = []

    def display(self, thing: Any, **_: Any) -> "Output":
        self.shown.append(thing)
        return self

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.updates.append(data["text/html"])


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Output:
    one = Output()
    monkeypatch.setattr(IPython.display, "display", one.display)
    monkeypatch.setattr(cells, "ready", lambda: None)
    return one


@pytest.fixture
def run(tmp_path: Any, no_agent_stays: None) -> Run:
    """A run's directory before its first step."""
    folder = RunDirectory(tmp_path / "run")
    folder.path.mkdir()
    hp.save_plan(PLAN, folder.plan_file)
    save_config(TrainConfig(steps=10), folder.config_file)
    set_state(folder, "running")
    return Run(folder.path, home=tmp_path)


def set_state(folder: RunDirectory, state: Any, message: str = "", **changes: Any) -> None:
    mine = {"pid": os.getpid(), "pid_created_unix_s": created_unix_s(os.getpid())}  # a process that lives
    status = RunStatus(run="run", state=state, message=message, created_unix_s=1.0, ranks=3, **(mine | changes))
    write_status(folder.status_file, status)


def test_a_search_is_shown_as_it_goes_and_left_still(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_views, "EVERY_S", 0.0)
    cell = SearchCell(PLAN.problem, "evolution", Budget(seconds=10), seed=0)
    (widget,) = output.shown
    words, button = widget.children[0].children
    assert "starting" in words.value
    cell.take(event(0.1, 30.0, LOADING))
    assert cell.state.baselines == {}, "they need the kernels, which are being loaded"
    cell.take(event(1.0, 20.0))
    assert "20 s" in words.value
    assert "against random" in words.value
    assert "width:10%" in words.value
    assert len(cell.state.events) == 2
    assert not cell.should_stop()
    button.click()
    assert cell.should_stop()
    cell.take(event(1.2, 19.0))
    assert button.disabled
    cell.finish(SimpleNamespace(plan=ESTIMATED, lower_bound=9.0, gap=0.5, cancelled=True))  # type: ignore[arg-type]
    (still,) = output.updates
    assert "Stopped: 120 plans" in still
    assert "Bottleneck:" in still
    assert still.count("data-root-id") == 2
    assert "http://" not in still
    assert "https://" not in still
    assert widget.comm is None or widget.comm._closed
    del cell, widget, words, button
    gc.collect()


def test_events_between_two_drawings_are_kept(output: Output) -> None:
    cell = SearchCell(PLAN.problem, "evolution", Budget(evaluations=1000), seed=0)
    words = output.shown[0].children[0].children[0]
    for i in range(1, 6):
        cell.take(event(i / 10, 20.0 - i))
    assert len(cell.state.events) == 5
    assert "19 s" in words.value


def test_a_click_is_not_sent_to_the_thread_that_runs_the_cell(output: Output) -> None:
    cell = cells.LiveCell(SearchFace, SearchState(PLAN.problem, "random", Budget()))
    assert cell._view is not None
    cell._view._button.comm = ipywidgets.Button().comm
    vars(cell._view._button.comm)["_reply_subshell_id"] = None
    cell._view.listen()
    assert "_reply_subshell_id" not in vars(cell._view._button.comm)


def test_without_widgets_still_views_follow_each_other(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise ImportError("ipywidgets")

    monkeypatch.setattr(cells, "_View", missing)
    monkeypatch.setattr(cells, "STILL_EVERY_S", 0.0)
    state = SearchState(PLAN.problem, "random", Budget())
    cell = cells.LiveCell(SearchFace, state)
    assert "starting" in output.shown[0]["text/html"]
    state.events.append(event(1.0, 20.0))
    cell.update(state)
    cell.finish(state)
    assert ["20 s" in html for html in output.updates] == [True, True]


def test_names_of_files_are_text(output: Output) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    cluster = PLAN.problem.cluster.replace(name=hostile)
    words = SearchFace().words(SearchState(PLAN.problem.replace(cluster=cluster), hostile, Budget(seconds=1)))
    assert "<img" not in words
    assert "&lt;img" in words


def test_a_run_is_followed_to_its_end_and_can_be_stopped(
    output: Output, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_views, "EVERY_S", 0.01)
    asked = threading.Event()

    def stop(_: Run) -> None:
        asked.set()
        set_state(run.directory, "stopped", "stopped by hand")

    monkeypatch.setattr(Run, "stop", stop)
    cell = RunCell(run)
    output.shown[0].children[0].children[1].click()
    assert asked.wait(20)
    assert cell.ended.wait(20)
    assert "stopped by hand" in output.updates[-1]


def test_a_run_that_is_over_is_shown_still(output: Output, run: Run) -> None:
    set_state(run.directory, "failed", "rank 1 died <b>")
    assert RunCell(run).ended.is_set()
    assert "rank 1 died &lt;b&gt;" in output.shown[0]["text/html"]


def test_a_run_before_its_first_step_says_so(run: Run) -> None:
    state = RunState(run)
    state.read()
    face = RunFace()
    face.update(state)
    assert "starting" in face.words(state)


def test_watching_goes_on_with_the_run_that_goes_on(tmp_path: Any, no_agent_stays: None) -> None:
    folders = [create_run_directory(PLAN, TrainConfig(steps=10), home=tmp_path)[1] for _ in range(2)]
    set_state(folders[0], "preempted", successor=folders[1].path.name)
    set_state(folders[1], "finished")
    run = Run(folders[0].path, home=tmp_path)
    assert hp.watch(run, live=False)["status"] == "finished"
    set_state(folders[1], "preempted", "the node was taken")
    with pytest.raises(Preempted, match=f"{folders[1].path.name}: the node was taken"):
        hp.watch(run, live=False)
