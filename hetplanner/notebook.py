"""The façade's verbs: search, rehearse and launch, joined with live plots in a notebook or a line in a terminal."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetplanner.calibration.model import Calibration
    from hetplanner.cluster.model import Cluster
    from hetplanner.elastic.forecast.forecast import Forecast
    from hetplanner.elastic.forecast.preemptions import PreemptionTrace
    from hetplanner.plan.elastic.model import ElasticPlan
    from hetplanner.plan.elastic.rebalancing import RebalancerName
    from hetplanner.plan.files.plan_files import AnyPlan
    from hetplanner.plan.model import Plan
    from hetplanner.plan.problem import Problem
    from hetplanner.plan.trace import Trace
    from hetplanner.planners.comparison import Comparison
    from hetplanner.planners.interface import Budget, SearchEvent, SearchResult
    from hetplanner.planners.step_time.pareto import ParetoEvent, ParetoFront
    from hetplanner.profiles.model import Profile
    from hetplanner.runs.run import Run
    from hetplanner.ui.notebook.cell_views import RunCell
    from hetplanner.ui.notebook.draw_cell import Drawing
    from hetplanner.ui.notebook.framed import Dashboard, JupyterDashboard
    from hetplanner.workload.workload import Workload

POLL_S = 0.2
"""Between two looks at a run that is waited for."""

LAST_DRAWING_S = 10.0

_dashboard: Dashboard | None = None

_run_cells: dict[str, tuple[int, RunCell]] = {}
"""Run -> the cell execution that shows it, and its live view."""


def search(
    problem: Problem,
    *,
    planner: str = "evolution",
    seed: int = 0,
    budget: Budget | str | float | None = "10 s",
    settings: dict[str, Any] | None = None,
    start: Plan | None = None,
    live: bool | None = None,
) -> SearchResult:
    """Searches for the best plan of a problem.

    Args:
        problem: what to plan.
        planner: one of `hetplanner.planners.registry.planner_names()`.
        seed: of every random choice.
        budget: seconds ("10 s") or evaluations ("20000 evaluations").
        settings: the planner's own settings, by field.
        start: a plan of the same cluster to begin with; where the problem allows it, the result is no worse.
        live: show convergence, best allocation and a stop button while it searches; None = in a notebook only.

    Returns:
        The result with its moments, for `hp.plots.search_replay`; an interrupt (a stop button, Ctrl-C) ends the search
        and returns the best so far.

    Raises:
        InvalidInput, Infeasible: as the planner does.
    """
    from hetplanner.planners.interface import Budget
    from hetplanner.planners.registry import make_planner
    from hetplanner.planners.search.interrupts import Interrupts
    from hetplanner.planners.search.moments import MomentLog

    one, limit = make_planner(planner, settings), Budget.parse(budget)
    cell, log = None, MomentLog(problem)
    if live if live is not None else _in_notebook():
        from hetplanner.ui.notebook.cell_views import SearchCell

        cell = SearchCell(problem, planner, limit, seed)
    show = cell.take if cell else _line_in_terminal

    def on_event(event: SearchEvent) -> None:
        log.take(event)
        show(event)

    with Interrupts() as interrupted:
        result = one.solve(
            problem,
            seed=seed,
            budget=limit,
            on_event=on_event,
            should_stop=(lambda: interrupted() or cell.should_stop()) if cell else interrupted,
            start=start,
        )
    result = log.kept_in(result)
    if cell is not None:
        cell.finish(result)
    return result


def baselines(problem: Problem, *, seed: int = 0) -> dict[str, Plan]:
    """Plans to compare with: rank order (devices by site in file order, equal layers) and one random placement."""
    from hetplanner.planners.interface import Budget
    from hetplanner.planners.registry import make_planner

    one = Budget(evaluations=1)
    return {name: make_planner(name).solve(problem, seed=seed, budget=one).plan for name in ("rank-order", "random")}


def compare_planners(
    problem: Problem,
    *,
    planners: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 5,
    budget: Budget | str | float | None = "2 s",
    baseline: str | None = None,
) -> Comparison:
    """Solves a problem with several planners and seeds; `hp.plots.comparison` draws the outcome.

    Args:
        problem: what to plan.
        planners: names in the registry; None takes all of them.
        seeds: how many (0, 1, …), or which.
        budget: of every search: seconds ("2 s") or evaluations ("20000 evaluations").
        baseline: whose median ratios refer to; by default the first baseline among the planners, else the first.

    Returns:
        The comparison; an interrupt (the stop button, Ctrl-C) ends it and keeps the searches that are done.

    Raises:
        InvalidInput, Infeasible: see `hetplanner.planners.comparison.run_comparison`.
    """
    from hetplanner.planners.comparison import run_comparison
    from hetplanner.planners.search.interrupts import Interrupts

    with Interrupts() as stopped:
        return run_comparison(
            problem, planners=planners, seeds=seeds, budget=budget, baseline=baseline, should_stop=stopped
        )


def pareto(problem: Problem, *, seed: int = 0, budget: Budget | str | float | None = "10 s") -> ParetoFront:
    """Searches for plans of which none is both faster and cheaper than another; `hp.plots.pareto` draws them.

    Args:
        problem: what to plan; its own objective is not read.
        seed: of every random choice.
        budget: of all searches together: seconds ("10 s") or evaluations ("200000 evaluations").

    Returns:
        The front; an interrupt (the stop button, Ctrl-C) ends the search and keeps what was found.

    Raises:
        InvalidInput, Infeasible: see `hetplanner.planners.step_time.fronts.search_front`.
    """
    from hetplanner.planners.search.interrupts import Interrupts
    from hetplanner.planners.step_time.fronts import search_front

    with Interrupts() as stopped:
        return search_front(problem, seed=seed, budget=budget, on_event=_front_in_terminal, should_stop=stopped)


def forecast(
    plan: ElasticPlan,
    preemptions: str | PreemptionTrace | None = None,
    *,
    lifetime_s: float | None = None,
    duration_s: float = 24 * 3600.0,
    seeds: int = 10,
    policies: Sequence[RebalancerName] | None = None,
    download_s: float | None = None,
    notice_s: float = 0.0,
) -> dict[str, Forecast]:
    """What an elastic plan is expected to train while peers come and go, by rebalancing policy.

    Args:
        plan: the elastic plan.
        preemptions: an observed trace, a published one's name or a file; fleets of the plan's size are made of it.
        lifetime_s: instead, draw preemptions: the mean of a peer's life.
        duration_s: of drawn preemptions.
        seeds: how many (0, 1, …).
        policies: `throughput`, `queue`, `none`; the plan's own if not given.
        download_s: until a peer that joins or moves has its state; by the plan's links if not given.
        notice_s: seconds before its preemption at which a peer is told.

    Raises:
        InvalidInput: see `hetplanner.elastic.forecast.forecast`.
    """
    from hetplanner.cost.elastic.swarm_costs import cost_swarm
    from hetplanner.elastic.forecast.forecast import forecast_plan, traces_for

    trace_of = traces_for(plan, preemptions, lifetime_s=lifetime_s, duration_s=duration_s)
    costs = cost_swarm(plan)
    ways = {name: plan.rebalancing.replace(policy=name) for name in policies or (plan.rebalancing.policy,)}
    return {
        name: forecast_plan(
            plan, costs, trace_of, range(seeds), rebalancing=how, download_s=download_s, notice_s=notice_s
        )
        for name, how in ways.items()
    }


def rehearse(
    of: Problem | AnyPlan,
    *,
    stages: int = 2,
    replicas: int = 2,
    model: str = "tiny-gpt",
    seed: int = 0,
    budget: Budget | str | float | None = "2 s",
) -> AnyPlan:
    """Plans a rehearsal: same sites and links, fewer devices, a tiny model; see `plan.rehearsal`.

    Args:
        of: what is rehearsed; of an elastic plan the result is a small swarm under the same rules.
        stages, replicas: of the rehearsal; their product is the number of processes.
        model: a preset that trains on CPUs.
        seed, budget: of the search.

    Raises:
        InvalidInput, Infeasible: the shape does not fit the cluster or the model, or the rules do not fit the model.
    """
    from hetplanner.cost.elastic.swarm_rules import under_rules_of
    from hetplanner.plan.elastic.model import ElasticPlan
    from hetplanner.plan.problem import Problem
    from hetplanner.plan.rehearsal import rehearsal_problem
    from hetplanner.workload.presets import preset

    problem = of if isinstance(of, Problem) else of.problem
    small = rehearsal_problem(problem, preset(model), stages=stages, replicas=replicas)
    if not isinstance(of, ElasticPlan):
        return search(small, seed=seed, budget=budget, live=False).plan
    found = search(small, planner="swarm", settings={"mode": "elastic"}, seed=seed, budget=budget, live=False)
    assert found.elastic is not None
    return under_rules_of(found.elastic, of)


def launch(
    plan: AnyPlan,
    *,
    emulate_links: bool = False,
    steps: int = 100,
    seed: int = 0,
    data: str | None = None,
    init_from: str | None = None,
    live: bool | None = None,
    **settings: Any,
) -> Run:
    """Starts a real run of a plan on this machine, owned by the agent; returns at once.

    Warns where the system keeps other users of the machine out of it less well than it could.

    Args:
        plan: what to run.
        emulate_links: delay every transfer as the plan's links would.
        steps: optimiser steps.
        seed: of initialisation and data order.
        data: path of text, token files, a saved Hugging Face data set or images, or "digits"; None takes the Python
            standard library's sources, or digits for images.
        init_from: a Hugging Face model folder, whose weights the training begins with.
        live: show the run in the cell while it goes on, with a stop button; None = in a notebook only.
        settings: other fields of `hp.TrainConfig`, such as `learning_rate`, `eval_data` or `checkpoint_every`.

    Raises:
        InvalidInput: a setting that there is not, or that does not fit.
        Infeasible: if this machine cannot hold the plan's ranks.
        RunError: if the agent does not start.
    """
    from hetplanner.launchers.registry import make_launcher
    from hetplanner.plan.train import TrainConfig
    from hetplanner.runs.agent.client import AgentClient
    from hetplanner.runs.home import runs_directory
    from hetplanner.schema import checked

    given = {"steps": steps, "seed": seed, "data": data, "init_from": init_from, "emulate_links": emulate_links}
    config = checked(TrainConfig, given | settings, "launch")
    for text in make_launcher("local").request(plan, runs_directory() / "new-run", config).warnings:
        warnings.warn(text, stacklevel=2)
    run = AgentClient().start(plan, config)
    if live if live is not None else _in_notebook():
        _show_run(run)
    return run


def calibrate(
    source: Run | Trace | Sequence[tuple[Plan, float]],
    plan: Plan | None = None,
    *,
    fit: Sequence[str] = ("efficiency",),
    last_steps: int = 20,
) -> Calibration:
    """Fits a cluster to what was measured; `hp.apply_calibration` gives the cluster, `hp.plots.calibration` draws it.

    Args:
        source: a run, a trace of `plan`, or pairs of a plan and the measured seconds of its step.
        plan: of a trace.
        fit: of pairs: what to fit, of efficiency, message, overlap, step, launch, latency, bandwidth.
        last_steps: of a run: how many steps to read.

    Raises:
        InvalidInput: see `hetplanner.calibration.trace_fit` and `hetplanner.calibration.table_fit`.
    """
    from hetplanner.calibration.table_fit import MeasuredStep, calibrate_table
    from hetplanner.calibration.trace_fit import calibrate_trace
    from hetplanner.errors import InvalidInput
    from hetplanner.plan.trace import Trace
    from hetplanner.runs.run import Run

    if isinstance(source, Run):
        return calibrate_trace(source.trace(last_steps), plan or source.plan)
    if isinstance(source, Trace):
        if plan is None:
            raise InvalidInput("calibrate: a trace does not hold its plan; give it: calibrate(trace, plan)")
        return calibrate_trace(source, plan)
    steps = [MeasuredStep(f"row {i}", one, seconds) for i, (one, seconds) in enumerate(source)]
    return calibrate_table(steps, fit=fit)


def profile(
    workload: Workload,
    micro_batches: Sequence[int] | None = None,
    *,
    tensor: Sequence[int] = (1,),
    device: str = "auto",
    threads: int | None = None,
    kind: str | None = None,
) -> Profile:
    """Measures the seconds and memory of a workload's layers on a device of this host; `hp.plots.profile` draws it.

    Plan with it: `problem.replace(profile=…)`.

    Args:
        workload: what is measured.
        micro_batches: sizes; the workload's own if not given.
        tensor: how many devices of this host share each layer; every size is measured with each of them.
        device: cpu, cuda, cuda:N or auto.
        threads: of a processor, and of each device that shares its layers; all cores if not given.
        kind: what clusters call the device; the catalog's name of what is found if not given.

    Raises:
        InvalidInput, RunError: see `hetplanner.profiles.measuring`.
    """
    from hetplanner.profiles.measuring import measured_profile

    sizes = (workload.micro_batch,) if micro_batches is None else micro_batches
    return measured_profile(
        workload, sizes, degrees=tensor, device=device, threads=threads, kind=kind, on_layer=_layer_in_terminal
    )


def watch(run: Run, *, timeout_s: float = 600.0, live: bool | None = None) -> dict[str, Any]:
    """Follows a run to its end, showing it in a notebook's cell; returns its summary.

    Where hosts leave or return, another run may go on in its place: that one is followed then, and gives the summary.

    Raises:
        RunError: if the run failed, or is still going on after `timeout_s`.
        Preempted: it was told to end from outside.
    """
    from hetplanner.errors import RunError
    from hetplanner.runs.agent.keeper import AgentKeeper
    from hetplanner.runs.status import raise_if_lost

    shown = live if live is not None else _in_notebook()
    deadline = time.monotonic() + timeout_s
    keeper = AgentKeeper(run.home)
    following: Run | None = run
    while following is not None:
        run = following
        cell = _show_run(run) if shown else None
        while not run.followed_status(keeper).is_over:
            if time.monotonic() > deadline:
                raise RunError(f"run {run.id}: still going on after {timeout_s:g} s; stop it or wait longer")
            time.sleep(POLL_S)
        if cell is not None:
            cell.ended.wait(LAST_DRAWING_S)
        following = run.successor()
    status = run.status()
    raise_if_lost(run.id, status)
    return run.summary()


def dashboard(height: int = 900) -> Dashboard | JupyterDashboard:
    """The dashboard, in this cell, in a frame; also behind a proxy, a base URL or JupyterHub.

    Where the Jupyter server has the launcher's tile (the extra `notebook`) it is the page of that tile, which ends with
    Jupyter. Elsewhere it is a local server behind the same gate as `hetplanner dashboard`: one for the kernel, with
    which it ends; `close()` ends it before.

    Args:
        height: of the frame, in pixels.

    Raises:
        RunError: the server does not start.
    """
    from hetplanner.ui.notebook import jupyter
    from hetplanner.ui.notebook.framed import Dashboard, JupyterDashboard, jupyter_origins

    if jupyter.serves_this_kernel():
        return JupyterDashboard(height)
    global _dashboard
    if _dashboard is None or not _dashboard.is_alive:
        _dashboard = Dashboard(height, jupyter_origins())
    _dashboard.height = height
    return _dashboard


def draw(cluster: Cluster | None = None, height: int = 440) -> Drawing:
    """A map in this cell on which one draws a cluster, as on the dashboard: `drawing.cluster` is what is drawn by then.

    Args:
        cluster: what to begin with; None begins with an empty map.
        height: of the map, in pixels.

    Raises:
        InvalidInput: without the extra `notebook`.
    """
    from hetplanner.ui.notebook.draw_cell import Drawing

    return Drawing(cluster, height)


def _in_notebook() -> bool:
    """Whether we run in a Jupyter kernel (which shows rich displays)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _show_run(run: Run) -> RunCell:
    """The live view of a run in this cell; one that this execution has shown already is enough."""
    from hetplanner.ui.notebook.cell_views import RunCell

    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    execution = shell.execution_count if shell is not None else 0
    shown = _run_cells.get(run.id)
    if shown is None or shown[0] != execution:
        _run_cells[run.id] = shown = (execution, RunCell(run))
    return shown[1]


def _line_in_terminal(event: SearchEvent) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{event.phase}: best {event.best:.5g}, {event.evaluations:,} plans, {event.seconds:.1f} s ")
        sys.stderr.flush()


def _layer_in_terminal(done: int, total: int, words: str) -> bool:
    if sys.stderr.isatty():
        print(f"\r{done} of {total} layers: {words:60}", end="\n" if done == total else "", file=sys.stderr)
    return True


def _front_in_terminal(event: ParetoEvent) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(
            f"\r{event.phase}: {len(event.points)} on the front, {event.evaluations:,} plans, {event.seconds:.1f} s "
        )
        sys.stderr.flush()
