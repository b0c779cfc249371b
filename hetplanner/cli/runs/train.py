"""hetplanner train: submit a plan to the agent and follow the run."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hetplanner.cli.output import AsJson, console, notices, print_json_line
from hetplanner.cli.planning.plan import PlanFile
from hetplanner.cli.runs.train_options import (
    AdapterFolder,
    Betas,
    Budget,
    CheckpointEvery,
    CheckpointsAsync,
    CheckpointsKept,
    CheckpointsMaxAge,
    ClipNorm,
    Connections,
    CopyTo,
    Data,
    DeltaCacheBytes,
    Detach,
    Device,
    DryRun,
    EmulateLinks,
    EvalBatches,
    EvalData,
    EvalEvery,
    HostsFile,
    InitFrom,
    Launcher,
    LearningRate,
    LrFloor,
    LrFromZero,
    LrSchedule,
    MaxRestarts,
    Momentum,
    Out,
    Replan,
    Resume,
    Seed,
    Sinks,
    Steps,
    WarmupSteps,
    WeightDecay,
    Without,
)
from hetplanner.errors import HetplannerError, Infeasible, InvalidInput
from hetplanner.units import parse_seconds, short_bytes, short_seconds

if TYPE_CHECKING:
    from hetplanner.launchers.disk import DiskNeed
    from hetplanner.launchers.hosts_file import Hosts
    from hetplanner.launchers.interface import LaunchRequest
    from hetplanner.plan.files.plan_files import AnyPlan
    from hetplanner.plan.train import TrainConfig
    from hetplanner.runs.run import Run
    from hetplanner.runs.sinks.following import Followers

POLL_S = 0.2
SINKS_S = 20.0
"""After a run its sinks are waited for so long; they go on without this terminal."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")
MOST_CORRECTIONS = 6
"""Of the cluster file that are told after a run; its summary in JSON has all."""


def train(
    context: typer.Context,
    file: PlanFile,
    launcher: Launcher = "local",
    hosts: HostsFile = None,
    emulate_links: EmulateLinks = False,
    connections: Connections = 1,
    steps: Steps = 100,
    data: Data = None,
    seed: Seed = 0,
    learning_rate: LearningRate = 1e-3,
    warmup_steps: WarmupSteps = 20,
    lr_schedule: LrSchedule = "constant",
    lr_floor: LrFloor = 0.1,
    lr_from_zero: LrFromZero = False,
    weight_decay: WeightDecay = 0.1,
    betas: Betas = (0.9, 0.95),
    momentum: Momentum = None,
    clip_norm: ClipNorm = None,
    device: Device = "auto",
    checkpoint_every: CheckpointEvery = None,
    checkpoints_kept: CheckpointsKept = 2,
    checkpoints_max_age: CheckpointsMaxAge = None,
    checkpoints_async: CheckpointsAsync = False,
    copy_to: CopyTo = None,
    eval_data: EvalData = None,
    eval_every: EvalEvery = None,
    eval_batches: EvalBatches = 1,
    init_from: InitFrom = None,
    adapter: AdapterFolder = None,
    resume: Resume = None,
    without: Without = None,
    budget: Budget = None,
    max_restarts: MaxRestarts = 0,
    replan: Replan = False,
    delta_cache_bytes: DeltaCacheBytes = 2**28,
    sink: Sinks = None,
    detach: Detach = False,
    dry_run: DryRun = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Train a plan for real. The run belongs to the agent; Ctrl-C stops it, --detach leaves it."""
    from hetplanner.plan.files.plan_files import load_any_plan
    from hetplanner.runs.sinks.registry import check_sinks

    sinks = check_sinks(sink or ())
    plan = _planned_without(load_any_plan(file), without, seed, budget, resume if launcher != "local" else None)
    _begin(plan, _config(context, plan), launcher, hosts, out, sinks, detach, dry_run, as_json)


def _begin(
    plan: AnyPlan,
    config: TrainConfig,
    launcher: str,
    hosts: Path | None,
    out: Path | None,
    sinks: Sequence[str],
    detach: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Checks what can be checked, then prints the commands, or starts the run."""
    from hetplanner.launchers.disk import disk_need, need_of_head
    from hetplanner.launchers.hosts_file import read_hosts
    from hetplanner.runs.agent.client import AgentClient

    where = read_hosts(hosts) if hosts is not None else None
    request, need = _request(plan, config, launcher, where, out), disk_need(plan, config)
    _check_inputs(plan, config, is_here=launcher == "local")
    if dry_run:
        _print_request(request, need, as_json)
        return
    request.command_here()  # refuses what can only be pasted
    _print_warnings(request, need if launcher == "local" else need_of_head(need))
    start = partial(AgentClient().start, plan, config, out, launcher=launcher, hosts=where)
    if not detach:
        follow(start, as_json=as_json, sinks=sinks)
        return
    _print_place(run := start(), as_json)
    _followers(run, sinks)


def _check_inputs(plan: AnyPlan, config: TrainConfig, *, is_here: bool) -> None:
    """Refuses data and first weights that are on this machine and do not fit, and an address that no run takes.

    Raises:
        InvalidInput: one of these.
    """
    from hetplanner.data.registry import check_all_data
    from hetplanner.runs.resuming import check_copy_to, check_init_from

    check_copy_to(plan, config, is_here=is_here)
    if is_here:
        check_all_data(config.data, config.eval_data, plan.problem.workload)
    check_init_from(plan, config, is_here=is_here)


def _followers(run: Run, sinks: Sequence[str]) -> Followers | None:
    """Processes that send the run to the sinks; where they cannot be started, a warning says so."""
    from hetplanner.runs.sinks.following import Followers

    try:
        return Followers(run, sinks) if sinks else None
    except HetplannerError as error:
        notices.print(f"warning: {error}")
        return None


def _print_place(run: Run, as_json: bool) -> None:
    if as_json:
        print_json_line({"run": str(run.path), "id": run.id})
    else:
        console.print(f"run {run.id} in {run.path}")


def _print_warnings(request: LaunchRequest, need: DiskNeed) -> None:
    """Warnings and what the run will write. Raises Infeasible where the disk is too small."""
    from hetplanner.launchers.disk import check_disk

    for warning in (*request.warnings, check_disk(need, request.run_dir)):
        if warning:
            notices.print(f"warning: {warning}")
    notices.print(f"disk: {need}")


def _config(context: typer.Context, plan: AnyPlan) -> TrainConfig:
    """The settings that the options give, on top of those of a run that is resumed. Raises InvalidInput."""
    from hetplanner.plan.train import TrainConfig
    from hetplanner.runs.agent.client import data_for, folder_for
    from hetplanner.schema import checked

    given = context.params
    fields = {name: value for name, value in given.items() if name in TrainConfig.model_fields}
    fields |= {"data": data_for(given["launcher"], given["data"]), "resume": None}
    if given["checkpoints_max_age"] is not None:
        fields["checkpoints_max_age_s"] = parse_seconds(given["checkpoints_max_age"])
    fields["eval_data"] = data_for(given["launcher"], given["eval_data"])
    fields["init_from"] = folder_for(given["launcher"], given["init_from"])
    fields["adapter"] = folder_for(given["launcher"], given["adapter"], "adapter")
    config = checked(TrainConfig, fields, "train")
    return config if given["resume"] is None else _resumed(plan, config, given["resume"], _given(context))


def _given(context: typer.Context) -> set[str]:
    """Names of the options that were typed."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _planned_without(
    plan: AnyPlan, hosts: Sequence[str] | None, seed: int, budget: str | None, resume: str | None
) -> AnyPlan:
    """The plan made anew for the devices of the other hosts, which have all weights of a run to go on from; without
    lost hosts the plan as it is.

    Raises:
        InvalidInput, Infeasible: see `planners.without_hosts`.
    """
    if not hosts:
        if budget is not None:
            raise InvalidInput("budget: nothing is searched; it belongs to --without HOST")
        return plan
    from hetplanner.cli.planning.plan import solve
    from hetplanner.cli.problem import budget_of
    from hetplanner.plan.model import Plan
    from hetplanner.planners.registry import make_planner
    from hetplanner.planners.variants.without_hosts import plan_without_hosts
    from hetplanner.runs.run import open_run

    if not isinstance(plan, Plan):
        raise InvalidInput("without: a swarm continues without a lost host; remove the option")
    planner, limit = make_planner("evolution"), budget_of(budget or "5s", None)
    earlier = open_run(resume).plan if resume is not None else None
    found = plan_without_hosts(plan, hosts, earlier, lambda p, start: solve(planner, p, seed, limit, start).plan)
    shape = f"{len(found.stages)} stage(s) on {len(found.ranks)} device(s)"
    step = f", {short_seconds(found.estimate.step_s)} a step" if found.estimate is not None else ""
    before = f" ({short_seconds(plan.estimate.step_s)} with all hosts)" if plan.estimate is not None else ""
    notices.print(f"planned anew without {', '.join(hosts)}: {shape}{step}{before}")
    return found


def _resumed(plan: AnyPlan, config: TrainConfig, name: str, given: set[str]) -> TrainConfig:
    """The earlier run's settings, but for what was given. Raises InvalidInput if the plan cannot go on from it."""
    from hetplanner.runs.resuming import check_resume
    from hetplanner.runs.run import open_run

    for setting, option in (("init_from", "--init-from"), ("adapter", "--adapter")):
        if setting in given:
            raise InvalidInput(f"{setting}: a resumed run has its own weights; leave out {option} or --resume")
    earlier = open_run(name)
    typed = {field: getattr(config, field) for field in type(config).model_fields if field in given}
    found = earlier.config.replace(**(typed | {"resume": str(earlier.path)}))
    check_resume(plan, found)
    return found


def _request(plan: AnyPlan, config: TrainConfig, launcher: str, hosts: Hosts | None, out: Path | None) -> LaunchRequest:
    """What the launcher would run; the run's id is not known before the agent takes it."""
    from hetplanner.launchers.registry import make_launcher
    from hetplanner.runs.directory import new_run_id
    from hetplanner.runs.home import home_directory

    folder = out.absolute() if out is not None else home_directory() / "runs" / new_run_id(plan.problem.workload.name)
    return make_launcher(launcher, hosts).request(plan, folder, config)


def _print_request(request: LaunchRequest, need: DiskNeed, as_json: bool) -> None:
    from hetplanner.launchers.disk import check_disk

    warnings = list(request.warnings)
    try:
        warnings += [text for text in [check_disk(need, request.run_dir)] if text]
    except Infeasible as error:  # what would be refused can be looked at
        warnings.append(str(error))
    if as_json:
        commands = [{"host": c.host, "argv": list(c.argv), "env": dict(c.env)} for c in request.commands]
        disk = {f"{name}_bytes" if name != "kept" else name: value for name, value in asdict(need).items()}
        file = {"file": request.file} if request.file else {}
        print_json_line({"run": str(request.run_dir), "commands": commands, "warnings": warnings, "disk": disk} | file)
    else:
        for warning in warnings:
            notices.print(f"warning: {warning}")
        notices.print(f"disk: {need}")
        sys.stdout.write(request.script())


def follow(start: Callable[[], Run], *, as_json: bool, sinks: Sequence[str] = ()) -> None:
    """Starts a run and shows it until it ends. Ctrl-C stops the run as soon as there is one, and is raised again then.

    Args:
        start: returns the run.
        as_json: print lines of JSON.
        sinks: where its curves are sent.

    Raises:
        RunError: it failed.
        Preempted: it was told to end from outside.
    """
    from hetplanner.runs.status import raise_if_lost

    run: Run | None = None
    followers: Followers | None = None
    interrupted = False
    try:
        run = start()
        _print_place(run, as_json)
        followers = _followers(run, sinks)
        _show_until_over(run, followers)
        while (successor := run.successor()) is not None:
            notices.print(f"{run.status().message} ({successor.path})")
            run = successor
            _show_until_over(run)
    except KeyboardInterrupt:
        if run is None:
            raise
        interrupted = True
        notices.print("stopping the run …")
        run.stop()
        _show_until_over(run)
    summary = run.summary()
    status = run.status()
    if as_json:
        print_json_line(summary)
    else:
        _print_summary(run, summary)
    if followers is not None:
        for text in followers.wait(SINKS_S):
            notices.print(text)
    raise_if_lost(run.id, status)
    if interrupted:
        raise KeyboardInterrupt


def _show_until_over(run: Run, followers: Followers | None = None) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from hetplanner.runs.agent.keeper import AgentKeeper

    keeper = AgentKeeper(run.home)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notices, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("starting", total=run.config.steps)
        told: set[str] = set()  # without numbers, which change all the time
        while not (status := run.followed_status(keeper)).is_over:
            run.poll()
            for text in (*status.degraded, *(followers.problems() if followers is not None else ())):
                if (kind := NUMBER.sub("", text)) not in told:
                    told.add(kind)
                    notices.print(f"warning: {text}")
            count = len(status.degraded)
            mark = f", degraded: {count} warning{'s' if count > 1 else ''}" if count else ""
            progress.update(task, completed=len(run.steps()), description=_line(run) + mark)
            time.sleep(POLL_S)
    run.read_all()


def _line(run: Run) -> str:
    losses = run.losses()
    if not losses:
        return run.phase() or run.status().state
    step, loss = losses[-1]
    measured, predicted = run.measured_step_s(), run.predicted_step_s()
    times = f", {short_seconds(measured)} a step" if measured else ""
    times += f" (predicted {short_seconds(predicted)})" if measured and predicted else ""
    return f"step {step} loss {loss:.4f}{times}"


def _print_summary(run: Run, summary: dict[str, Any]) -> None:
    from hetplanner.cluster.measured import MEASURED_CLUSTER_FILE

    measured, predicted = summary["measured_step_s"], summary["predicted_step_s"]
    parts = [f"{summary['status']} after {summary['steps']} steps"]
    if summary["final_loss"] is not None:
        parts.append(f"loss {summary['final_loss']:.4f}")
    if found := run.evaluations():
        parts.append(f"on held-out data {found[-1]}")
    if measured:
        parts.append(f"{short_seconds(measured)} a step")
    if measured and predicted:
        parts.append(f"predicted {short_seconds(predicted)} ({measured / predicted - 1:+.1%})")
    parts.append(f"{short_bytes(summary['bytes_boundary'])} between stages")
    parts.append(f"{short_bytes(summary['bytes_reduce'])} for reductions")
    console.print(", ".join(parts))
    if summary["restarts"]:
        step = summary["resumed_step"]
        console.print(f"restarted from step {step} (restart {summary['restarts']})")
    elif summary["resumed_step"] is not None:
        console.print(f"resumed from step {summary['resumed_step']}")
    for text in summary["checkpoints_skipped"]:
        console.print(f"checkpoint skipped: {text}")
    if summary["late"]:
        console.print(f"{summary['late']} emulated deliveries were late, {short_seconds(summary['late_s'])} in all")
    if summary["lost_lines"]:
        console.print(f"{summary['lost_lines']} lines of telemetry lost: the disk did not take them")
    for text in summary["cluster_corrections"][:MOST_CORRECTIONS]:
        console.print(text)
    if summary["cluster_corrections"]:
        console.print(f"the cluster with the measured links: {run.path / MEASURED_CLUSTER_FILE}")
    if run.directory.model_file.exists():
        text = run.plan.problem.workload.continues_text
        hint = f'; try: hetplanner runs sample {run.id} "def main("' if text else ""
        console.print(f"model in {run.directory.model_file}{hint}")
