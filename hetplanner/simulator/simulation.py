"""Simulate a plan: a Trace of its steps, and the summary that judges finalists and predicts runs."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from hetplanner.cost.durations import durations_of
from hetplanner.plan.action import Schedule
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.plan.trace import Trace
from hetplanner.schedule.order import make_schedule
from hetplanner.simulator.engine import Engine
from hetplanner.simulator.jitter import STILL, Jitter


def simulate(
    plan: Plan,
    durations: Durations | None = None,
    *,
    steps: int = 1,
    jitter: Jitter = STILL,
    seed: int = 0,
    schedule: Schedule | None = None,
    first_step: int | None = None,
    fair_links: bool = False,
) -> Trace:
    """Performs the plan's schedule on its links.

    Args:
        plan: what to perform.
        durations: seconds per chunk and rank, measured or assumed; None takes the catalog's.
        steps: optimiser steps; a rank begins its next step as soon as it has ended the last.
        jitter: how much computing and transfers vary.
        seed: of the jitter; the same seed gives the same trace.
        schedule: order of the actions; None takes the plan's own.
        first_step: number of the first step in the run, which decides when replicas with local steps synchronise;
            None: so that they do in the last one.
        fair_links: transfers share links and NICs, as connections of real networks do; else they queue, as the
            emulator has them.
    """
    if durations is None:
        durations = durations_of(plan)
    first_step = -steps % plan.local_steps if first_step is None else first_step
    order = schedule or make_schedule(plan)
    spans = Engine(plan, order, durations, steps, jitter, seed, first_step=first_step, fair_links=fair_links).run()
    return Trace(spans, plan.ranks)


@dataclass(frozen=True)
class Summary:
    """One step of a trace in numbers.

    Attributes:
        step_s: from the end of the step before to the end of this one.
        bubble: share of the ranks' time in which they neither compute nor reduce; `idle` counts reductions, too.
        terms: mean seconds over ranks: compute, wait (for messages), reduce, optimizer, idle; adds up to step_s.
        per_rank: the same for every rank, with its label.
    """

    step_s: float
    bubble: float
    terms: dict[str, float]
    per_rank: list[dict[str, Any]]

    @property
    def idle(self) -> float:
        """Share of the ranks' time in which they compute nothing, as `Estimate.bubble` estimates it."""
        busy_s = self.terms["compute"] + self.terms["optimizer"]
        return 1.0 - busy_s / self.step_s if self.step_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def summarise_plan(
    plan: Plan,
    durations: Durations | None = None,
    *,
    steps: int = 1,
    jitter: Jitter = STILL,
    seed: int = 0,
    trace: Trace | None = None,
    fair_links: bool = False,
) -> Summary:
    """Simulates so many steps and gives the last in numbers; with local steps the mean over all kinds of steps.

    Args:
        plan, durations, jitter, seed, fair_links: as of :func:`simulate`.
        steps: simulated before one is taken, itself included.
        trace: what `simulate` gives with these arguments, if at hand.
    """

    def simulated(first_step: int | None = None) -> Trace:
        return simulate(
            plan, durations, steps=steps, jitter=jitter, seed=seed, first_step=first_step, fair_links=fair_links
        )

    last = summarise_trace(trace or simulated())
    if plan.local_steps == 1:
        return last
    (_, share), *others = plan.kinds_of_step
    kinds = [(share, last)]
    for step, share in others:
        kinds.append((share, summarise_trace(simulated((step + 1 - steps) % plan.local_steps))))

    def mean(values: Iterable[float]) -> float:
        return sum(share * value for (share, _), value in zip(kinds, values, strict=True))

    rows = [
        {
            key: mean(kind.per_rank[r][key] for _, kind in kinds) if isinstance(value, float) else value
            for key, value in row.items()
        }
        for r, row in enumerate(last.per_rank)
    ]
    terms = {name: mean(kind.terms[name] for _, kind in kinds) for name in last.terms}
    step_s = mean(kind.step_s for _, kind in kinds)
    bubble = (terms["wait"] + terms["idle"]) / step_s if step_s > 0 else 0.0
    return Summary(step_s, bubble, terms, rows)


TERM_OF_KIND = {
    "forward": "compute",
    "backward": "compute",
    "recv": "wait",
    "reduce": "reduce",
    "step": "optimizer",
}


def summarise_trace(trace: Trace) -> Summary:
    """Numbers of the last step in a trace, simulated or measured."""
    last = max((s.step for s in trace.spans), default=0)
    began = max((s.end_s for s in trace.spans if s.step < last and s.kind == "step"), default=0.0)
    ended = max((s.end_s for s in trace.spans if s.kind == "step"), default=trace.end_s)
    step_s = ended - began
    rows: list[dict[str, Any]] = [
        {"rank": r, "device": label, "compute": 0.0, "wait": 0.0, "reduce": 0.0, "optimizer": 0.0}
        for r, label in enumerate(trace.rank_labels)
    ]
    for span in trace.spans:
        if span.step == last and span.kind in TERM_OF_KIND:
            rows[span.rank][TERM_OF_KIND[span.kind]] += max(0.0, span.end_s - max(began, span.start_s))
    for row in rows:
        row["idle"] = max(0.0, step_s - row["compute"] - row["wait"] - row["reduce"] - row["optimizer"])
    names = ("compute", "wait", "reduce", "optimizer", "idle")
    terms = {name: sum(row[name] for row in rows) / len(rows) for name in names}
    bubble = (terms["wait"] + terms["idle"]) / step_s if step_s > 0 else 0.0
    return Summary(step_s, bubble, terms, rows)
