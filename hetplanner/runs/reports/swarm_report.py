"""A swarm's run as a whole: who did what of it, what was lost, and how it stands to the plan's steady-state step.

Its peers leave no spans, so nothing is compared term by term: the cost model's steady-state step, with all peers of the
start, is held against the median of the measured ones.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.cost.elastic.swarm_costs import expected_speeds, group_names
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.reading import reader
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reading.swarm_history import (
    CLOSING_PHASES,
    EVENTS_FILE,
    MAX_ATTEMPTS,
    MAX_MARKS,
    MAX_STAYS,
    WAYS_TO_GO,
    SwarmHistory,
)
from hetplanner.runs.reports.report import finite_data
from hetplanner.units import short_seconds

THERE = "there"
"""How a peer ended that had not gone when the run did, or was last seen."""


@dataclass(frozen=True)
class PeerReport:
    """A peer at one stage; who moved is there once for each.

    Attributes:
        name: the peer's; of a group as plans name it.
        micro_batches: whose gradients it contributed; None: the coordinator did not tell.
        share: of its stage's micro-batches.
        speed: measured, in micro-batches per second of its own work.
        expected: by the cost model, where it is of the plan.
        served_s: seconds for which it served this stage.
        end: left, lost, cut off, gone, moved or there.
    """

    peer: str
    name: str
    stage: int
    micro_batches: int | None
    share: float | None
    speed: float | None
    expected: float | None
    served_s: float
    end: str


@dataclass(frozen=True)
class ClosingTime:
    """Seconds of one phase of closing steps, over all attempts that came so far."""

    phase: str
    times: int
    median_s: float
    most_s: float


@dataclass(frozen=True)
class SwarmReport:
    """See the module.

    Attributes:
        emulated: peers and links were slowed to the plan's devices, so that the steady-state step is a prediction.
        step_s, tokens_per_s: by source: steady, measured; only what is known.
        counts: of happenings by kind, as `SwarmHistory.counts`.
        failures: why peers were lost, and how often.
        redone: micro-batches whose contributions to two neighbouring stages are of two passes; None: not told.
        closed, given_up: attempts to close a step.
        difference: how measured and steady-state step differ, in a sentence.
        unknown: what the run's folder does not tell, in sentences.
    """

    run: str
    state: str
    message: str
    steps: int
    planned_steps: int
    emulated: bool
    step_s: dict[str, float]
    tokens_per_s: dict[str, float]
    losses: tuple[tuple[int, float], ...]
    grad_norms: tuple[tuple[int, float], ...]
    peers: tuple[PeerReport, ...]
    counts: dict[str, int]
    failures: dict[str, int]
    redone: int | None
    closing: tuple[ClosingTime, ...]
    closed: int
    given_up: int
    difference: str
    unknown: tuple[str, ...]

    def to_data(self) -> dict[str, Any]:
        """Plain data; what is no finite number is None."""
        data: dict[str, Any] = finite_data(asdict(self))
        return data


@reader("run folder", at="run.directory.path")
def report_swarm(run: RunReader, name: str | None = None, history: SwarmHistory | None = None) -> SwarmReport:
    """Reads a run of an elastic plan, going on or over.

    Args:
        run: the run.
        name: what to call it; None takes its directory's name.
        history: of the same run, where it has been read already.

    Raises:
        InvalidInput: its plan, settings or status cannot be read, or its plan is static.
    """
    run.read_all()
    plan, status, path = run.any_plan, run.status(), run.directory.path
    if not isinstance(plan, ElasticPlan):
        raise InvalidInput(f"{name or path.name}: is of a static plan; hetplanner.report_run gives its report")
    history = history or SwarmHistory(path).read_all()
    steady = plan.estimate or estimate_plan(steady_state_plan(plan))
    step_s, tokens_per_s = {"steady_state": steady.step_s}, {"steady_state": steady.tokens_per_s}
    if (measured_s := run.measured_step_s()) is not None:
        step_s["measured"] = measured_s
        tokens_per_s["measured"] = run.tokens_per_s(recent=len(run.steps())) or 0.0
    closed = sum(attempt.closed for attempt in history.attempts)
    return SwarmReport(
        run=name or path.name,
        state=status.state,
        message=status.message,
        steps=len(run.steps()),
        planned_steps=run.config.steps,
        emulated=run.config.emulate_links,
        step_s=step_s,
        tokens_per_s=tokens_per_s,
        losses=tuple(run.losses()),
        grad_norms=tuple((s.step, s.grad_norm) for s in run.steps() if s.grad_norm is not None),
        peers=tuple(_peers(plan, history)),
        counts=dict(history.counts),
        failures=dict(history.failures),
        redone=history.work.redone if history.work.num_steps else None,
        closing=tuple(_closing(history)),
        closed=closed,
        given_up=len(history.attempts) - closed,
        difference=_difference(step_s, emulated=run.config.emulate_links),
        unknown=tuple(_unknown(history)),
    )


def _peers(plan: ElasticPlan, history: SwarmHistory) -> Iterable[PeerReport]:
    """The peers that served or contributed, by stage and name."""
    work = {(peer.stage, peer.peer): peer for peer in history.work.peers}
    served_s: dict[tuple[int, str], float] = defaultdict(float)
    for stay in history.stays:
        if stay.state == "serving":
            served_s[stay.stage, stay.peer] += (history.last_s if stay.end_s is None else stay.end_s) - stay.start_s
    of_stage: dict[int, int] = defaultdict(int)
    for done in work.values():
        of_stage[done.stage] += done.micro_batches
    expected, names, ends = expected_speeds(plan), group_names(plan), _ends(history)
    for stage, peer in sorted({*work, *served_s}):
        part = work.get((stage, peer))
        speeds = expected.get(peer, ())
        yield PeerReport(
            peer=peer,
            name=names.get(peer, peer),
            stage=stage,
            micro_batches=part.micro_batches if part else None,
            share=part.micro_batches / of_stage[stage] if part and of_stage[stage] else None,
            speed=part.speed if part else None,
            expected=speeds[stage] if stage < len(speeds) else None,
            served_s=served_s.get((stage, peer), 0.0),
            end=ends.get((stage, peer), THERE),
        )


def _ends(history: SwarmHistory) -> dict[tuple[int, str], str]:
    """How every peer's last stay at a stage ended; it is there where nothing is said of that moment."""
    at = {(m.peer, m.time_s): m.kind for m in history.marks if m.kind in (*WAYS_TO_GO, "gone", "move")}
    ends = {}
    for stay in history.stays:
        kind = THERE if stay.end_s is None else at.get((stay.peer, stay.end_s), THERE)
        ends[stay.stage, stay.peer] = "moved" if kind == "move" else kind
    return ends


def _closing(history: SwarmHistory) -> Iterable[ClosingTime]:
    for phase in CLOSING_PHASES:
        times = [attempt.seconds[phase] for attempt in history.attempts if phase in attempt.seconds]
        if times:
            yield ClosingTime(phase, len(times), statistics.median(times), max(times))


def _difference(step_s: Mapping[str, float], *, emulated: bool) -> str:
    steady_s, measured_s = step_s["steady_state"], step_s.get("measured")
    steady = f"The plan's steady-state step, with all peers of its start, takes {short_seconds(steady_s)}"
    if measured_s is None:
        return f"{steady}; fewer than two steps were committed, so there is nothing to compare it with."
    if not emulated:
        return (
            f"The median step took {short_seconds(measured_s)}. Peers and links were not slowed to the plan's devices,"
            f" so its steady-state step of {short_seconds(steady_s)} predicts nothing of this run."
        )
    change = measured_s / steady_s - 1.0
    return f"{steady}; the median step took {short_seconds(measured_s)} ({change:+.0%})."


def _unknown(history: SwarmHistory) -> Iterable[str]:
    """What a reader might look for in vain."""
    if history.first_s is None:
        yield f"The coordinator wrote no events ({EVENTS_FILE} is empty or missing): joins and losses are not known."
    elif history.commits and not history.work.num_steps:
        yield "This older coordinator did not record which peers worked on which micro-batches."
    elif history.work.num_steps < len(history.commits):
        untold = len(history.commits) - history.work.num_steps
        yield (
            f"For {untold} commits the work of each peer is not known: a restarted coordinator knows only that they are"
            " durable."
        )
    if history.counts.get("lost") or history.counts.get("cut off"):
        yield (
            "Other peers repeat the unfinished work of a lost peer. The repeated part is counted only where a commit"
            " contains it, as micro-batches of two passes."
        )
    if history.first_s is not None:
        yield "Peers of a swarm tell neither memory nor spans: there is no timeline inside a step and no memory here."
    if history.damaged:
        yield f"{history.damaged} lines of {EVENTS_FILE} could not be read and are left out."
    kept = {"stays": (len(history.stays), MAX_STAYS), "marks": (len(history.marks), MAX_MARKS)}
    kept["attempts to close a step"] = len(history.attempts), MAX_ATTEMPTS
    for words, (count, limit) in kept.items():
        if count == limit:
            yield f"Of more than {limit:,} {words} only the newest are here."
    if history.work.is_partial:
        yield "More peers came than are kept apart: the work of the last ones is missing."
