"""How a run ended: by the steps that are done and not by an exit code; then by what each process left behind."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.launchers.launch_file import load_launch
from hetplanner.liveness.heartbeat import Beat
from hetplanner.liveness.ranks import Lost
from hetplanner.plan.files.checkpoints import checkpoint_steps
from hetplanner.plan.files.plan_files import load_any_plan
from hetplanner.reading import DAMAGED
from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.reading.telemetry import RankTelemetry
from hetplanner.runs.reports.diagnosis import Diagnosis, diagnose
from hetplanner.runs.resuming import checkpoints_of
from hetplanner.runs.status import State
from hetplanner.schema import parse_json, read_text
from hetplanner.swarm.initial_state import read_ledger

MAX_INFO_BYTES = 64 * 2**20
_READ_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Departure:
    """What is known when no process of a run is left.

    Attributes:
        exit_code: of the launcher, negative for a signal; None where it was not seen.
        launcher_pid: its number.
        beats: what the ranks told last; empty where that cannot be read.
        stop_asked: its user wants it to stop.
        agent_told: the agent was told to end, and has passed it on.
        lost: a rank that was given up.
        oom: what the kernel tells of processes that it ended meanwhile for lack of memory.
    """

    exit_code: int | None
    launcher_pid: int | None = None
    beats: Sequence[Beat] = ()
    stop_asked: bool = False
    agent_told: bool = False
    lost: Lost | None = None
    oom: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """What has become of a run. `may_go_on`: not all steps are done, and the same need not happen again."""

    state: State
    message: str
    failed_rank: int | None = None
    last_lines: tuple[str, ...] = ()
    may_go_on: bool = False


def judge_end(
    directory: RunDirectory, labels: tuple[str, ...], steps: int, left: Departure, *, elastic: bool = False
) -> End:
    """Finished only if the model is saved with all its steps.

    Args:
        directory: the run's.
        labels: device of every rank.
        steps: that were asked for.
        left: what is known.
        elastic: the launcher knows by itself whether all steps are done: it ends with 0 only then, or when stopped.
    """
    if elastic and not left.stop_asked and _swarm_is_finished(directory, steps):
        return End("finished", "finished")
    saved = steps_saved(directory)
    enough = elastic or (saved is not None and saved >= steps)
    if enough and not (elastic and left.stop_asked) and _all_ended_well(directory, labels, left):
        return End("finished", "finished")
    if left.stop_asked:
        words = "stopped" if directory.model_file.exists() else "stopped before a model was saved"
        return End("stopped", words)
    if left.lost is not None:
        return End("failed", left.lost.message, left.lost.rank, may_go_on=True)
    ended = {rank: beat.exit_code for rank, beat in enumerate(left.beats) if beat.exit_code is not None}
    found = diagnose(directory, labels, left.exit_code, ended, left.oom)
    signalled = [rank for rank, beat in enumerate(left.beats) if beat.signum]
    if left.agent_told or found.told or (signalled and not found.would_repeat and found.failed_rank is None):
        words = f"{_who_was_told(directory, labels, left, found)}; {_what_is_saved(directory, elastic=elastic)}"
        return End("preempted", words, may_go_on=True)
    if left.exit_code == 0:
        words = f"ended after {saved or 0} of {steps} steps, and no process has said why"
        return End("failed", words, last_lines=found.last_lines, may_go_on=True)
    return End("failed", found.message, found.failed_rank, found.last_lines, may_go_on=not found.would_repeat)


def steps_saved(directory: RunDirectory) -> int | None:
    """Optimiser steps in the saved model, of the stage that has fewest; None where no model is saved."""
    if not directory.model_file.exists():
        return None
    path = directory.path / "model.json"
    try:
        data: Mapping[str, Any] = parse_json(read_text(path, MAX_INFO_BYTES), path.name)
        return min(int(step) for step in data["steps_of_stages"])
    except (*DAMAGED, InvalidInput):
        return None


def _all_ended_well(directory: RunDirectory, labels: tuple[str, ...], left: Departure) -> bool:
    if left.exit_code == 0:
        return True
    if any(beat.pid for beat in left.beats):
        return all(beat.exit_code == 0 for beat in left.beats)
    return left.exit_code is None and all(_phase(directory, rank) == "done" for rank in range(len(labels)))


def _phase(directory: RunDirectory, rank: int) -> str | None:
    return _telemetry(directory, rank).phase


def _telemetry(directory: RunDirectory, rank: int) -> RankTelemetry:
    telemetry = RankTelemetry(rank, directory.telemetry_file(rank))
    while telemetry.poll(_READ_BYTES):
        pass
    return telemetry


def _who_was_told(directory: RunDirectory, labels: tuple[str, ...], left: Departure, found: Diagnosis) -> str:
    """The processes that were told to end, and by what, as far as it is known."""
    if left.agent_told:
        return "preempted: the agent was told to end"
    for rank, label in enumerate(labels):
        if notice := _telemetry(directory, rank).notice:
            return f"preempted: {notice} (rank {rank}, {label})"
    for rank, beat in enumerate(left.beats):
        if beat.signum and beat.sender != left.launcher_pid:
            sender = f" from process {beat.sender}" if beat.sender else ""
            return f"preempted: rank {rank} ({labels[rank]}) was sent {_signal_name(beat.signum)}{sender}"
    if any(beat.signum for beat in left.beats):
        return "preempted: the launcher was told to end"
    return f"preempted: {found.message}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _swarm_is_finished(directory: RunDirectory, steps: int) -> bool:
    """Whether a swarm's decision log says so, however its launcher ended."""
    try:
        return read_ledger(directory.path).is_finished(steps)
    except InvalidInput:
        return False


def _what_is_saved(directory: RunDirectory, *, elastic: bool = False) -> str:
    if elastic and not load_launch(directory.path).is_local:
        return "its checkpoints are on the hosts"
    try:
        steps = checkpoints_of(load_any_plan(directory.plan_file), directory.path)
    except InvalidInput:
        steps = checkpoint_steps(directory.path)
    return f"saved after step {steps[0]}" if steps else "there was nothing to save yet"
