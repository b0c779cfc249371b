"""What a run's steps are made of, predicted and measured: rank by rank, link by link, and the largest difference.

Cheap enough for a page that follows a run: the prediction is simulated once, a look at the newest steps takes
milliseconds. `report` adds the catalog's view and fits the model again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from hetplanner.cost.terms import term_label
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import on_measured_links
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.trace import Trace
from hetplanner.reading import DAMAGED, reader
from hetplanner.runs.reading.reader import RunReader
from hetplanner.simulator.simulation import simulate
from hetplanner.simulator.terms import (
    TERMS,
    LinkUse,
    StepTerms,
    link_uses,
    mean_terms,
    steps_with_beginning,
    terms_of_ranks,
)
from hetplanner.units import short_seconds

SIMULATED_STEPS = 4
SETTLED = 0.02
"""Prediction and measurement that differ by less agree."""
WORDS = {name: term_label(name) for name in TERMS}


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's terms; `measured` is None where no step was measured."""

    rank: int
    device: str
    predicted: StepTerms | None
    measured: StepTerms | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class LinkReport:
    """One link and role, in a mean step; None where it is not known.

    Attributes:
        role: activation, gradient, reduce or norm.
        predicted_transit_s, transit_s: mean time of a message from being made to its arrival.
        predicted_wait_s, wait_s: what the receiver waited for its messages, in sum.
        late, late_s: deliveries per step that the emulator could only make after their time.
    """

    source: int
    target: int
    role: str
    predicted_bytes: float | None
    bytes: float | None
    predicted_transit_s: float | None
    transit_s: float | None
    predicted_wait_s: float | None
    wait_s: float | None
    late: float | None
    late_s: float | None


@dataclass(frozen=True)
class Comparison:
    """A run's steps, predicted and measured.

    Attributes:
        step_s: by source: predicted, measured, and what else was given; only what is known.
        terms: the same sources, mean over ranks; they add up to their step, up to the median's doing.
        summary: the step's time against the prediction, in a sentence.
        difference: the largest one between prediction and measurement, in a sentence; empty where there is none.
    """

    step_s: dict[str, float]
    terms: dict[str, StepTerms]
    ranks: tuple[RankReport, ...]
    links: tuple[LinkReport, ...]
    summary: str
    difference: str


class Comparer:
    """Holds a run against its prediction, again and again while it goes on."""

    def __init__(self, run: RunReader) -> None:
        self.run = run
        self._predicted: Trace | None = None

    @reader("run folder", at="self.run.directory.path")
    def compare(self, trace: Trace, others: Mapping[str, Trace] | None = None) -> Comparison:
        """The run as it is now.

        Args:
            trace: measured spans of some of its steps.
            others: further simulations of the plan by name, to be held against it.
        """
        run = self.run
        self._predicted = self._predicted or _predicted_trace(run)
        measured = trace if steps_with_beginning(trace) else None
        traces = {"predicted": self._predicted, "measured": measured, **(others or {})}
        rows = {source: _rank_terms(found, run.plan) for source, found in traces.items() if found is not None}
        if "predicted" in rows:
            rows["predicted"] = _with_clipping(rows["predicted"], run)
        ranks = _rank_reports(run, rows)
        links = _link_reports(run, self._predicted, measured)
        step_s = {source: mean_terms(found).step_s for source, found in rows.items()}
        step_s |= {k: v for k, v in (("measured", _measured_step_s(run)), ("predicted", run.predicted_step_s())) if v}
        terms = {source: mean_terms(found) for source, found in rows.items()}
        return Comparison(step_s, terms, ranks, links, *name_difference(step_s, ranks, links))


# -- traces and terms -----------------------------------------------------------------------------


def _predicted_trace(run: RunReader) -> Trace | None:
    """The simulation that the prediction was made of: the same durations give the same trace."""
    try:
        basis = basis_of_prediction(run)
        if basis is None:
            return None
        return simulate(basis.plan, basis.durations, steps=simulated_steps(basis.plan), fair_links=basis.fair_links)
    except (IndexError, ValueError):  # damaged: lists of other lengths than the plan has ranks
        return None


@dataclass(frozen=True)
class Basis:
    """What a run's prediction is simulated from.

    Attributes:
        plan: on the links that the ranks measured, if they did.
        durations: what the ranks measured of themselves.
        fair_links: transfers share links, as connections of real networks do.
    """

    plan: Plan
    durations: Durations
    fair_links: bool


def basis_of_prediction(run: RunReader) -> Basis | None:
    """None until the ranks have profiled themselves. Raises IndexError or ValueError: it is of another plan."""
    durations, links = _profiled(run), run.measured_links()
    if durations is None:
        return None
    plan = run.plan if links is None else on_measured_links(run.plan, links)
    return Basis(plan, durations, links is not None)


def _profiled(run: RunReader) -> Durations | None:
    data = (run.prediction() or {}).get("durations")
    try:
        if isinstance(data, dict):
            return Durations.from_data(data)
        return _from_profile_lines(run.profiles())  # of a run before predictions kept their durations
    except DAMAGED:
        return None


def _from_profile_lines(rows: Sequence[dict[str, Any]]) -> Durations:
    """Raises KeyError, TypeError or ValueError if a rank has not been profiled, or they are damaged."""
    columns: dict[str, Any] = {f"{name}_s_C": [row[f"{name}_s"] for row in rows] for name in ("forward", "backward")}
    for name in ("optimizer", "encode", "decode", "reduce"):
        columns[f"{name}_s_N"] = [row[f"{name}_s"] for row in rows]
    message_s = sum(float(row["message_s"]) for row in rows) / max(1, len(rows))
    return Durations.from_data(columns | {"message_s": message_s, "cores": sum(float(row["cores"]) for row in rows)})


def _rank_terms(trace: Trace, plan: Plan) -> list[StepTerms]:
    """Terms of every rank: of the last step of a simulation, of the middle half of a run's steps.

    Where replicas take local steps, the mean over whole rounds of them, since one step in each does all the exchange.
    """
    by_step = [terms_of_ranks(trace, plan, step) for step in steps_with_beginning(trace)]
    if trace.origin == "simulated":
        chosen = by_step[-plan.local_steps :]
    elif plan.is_local:
        chosen = by_step[-(max(1, len(by_step) // plan.local_steps) * plan.local_steps) :]
    else:
        by_step.sort(key=lambda rows: mean_terms(rows).step_s)
        quarter = len(by_step) // 4
        chosen = by_step[quarter : len(by_step) - quarter]
    return [mean_terms(rows) for rows in zip(*chosen, strict=True)]


def simulated_steps(plan: Plan) -> int:
    """Enough for the ranks' skew at the first step to settle, and for a whole round of local steps behind."""
    return SIMULATED_STEPS - 1 + plan.local_steps


def _measured_step_s(run: RunReader) -> float | None:
    """The median; the mean where replicas take local steps, whose exchange comes once in a while."""
    times = run.step_times_s()
    return fmean(times) if times and run.plan.is_local else run.measured_step_s()


def _with_clipping(rows: list[StepTerms], run: RunReader) -> list[StepTerms]:
    """The exchange of gradient norms is not simulated, but predicted; it belongs to the update."""
    terms = (run.prediction() or {}).get("terms")
    clip_s = terms.get("clip") if isinstance(terms, dict) else None
    if not isinstance(clip_s, int | float):  # there is none, or the file is damaged
        return rows
    return [StepTerms(**row.to_dict() | {"optimizer": row.optimizer + float(clip_s)}) for row in rows]


def _rank_reports(run: RunReader, rows: dict[str, list[StepTerms]]) -> tuple[RankReport, ...]:
    most = [t.peak_bytes for t in run.ranks]
    predicted, measured = rows.get("predicted"), rows.get("measured")
    return tuple(
        RankReport(r, device, predicted[r] if predicted else None, measured[r] if measured else None, most[r])
        for r, device in enumerate(run.plan.ranks)
    )


# -- links ----------------------------------------------------------------------------------------


def _link_reports(run: RunReader, predicted: Trace | None, measured: Trace | None) -> tuple[LinkReport, ...]:
    """Boundary messages from the spans; what else ran over links, and lateness, from the ranks' own counters."""
    planned = _mean_uses(predicted)
    seen = _mean_uses(measured)
    reduced = _planned_reductions(run.plan)
    keys = sorted({*planned, *seen, *_counted(run), *reduced})
    return tuple(_link_report(run, key, planned.get(key), seen.get(key), reduced.get(key)) for key in keys)


LinkKey = tuple[int, int, str]


def _mean_uses(trace: Trace | None) -> dict[LinkKey, LinkUse]:
    """By link and role, the median step of a trace by what its receivers waited."""
    if trace is None:
        return {}
    found: dict[LinkKey, list[LinkUse]] = defaultdict(list)
    steps = steps_with_beginning(trace)
    for step in steps[-1:] if trace.origin == "simulated" else steps:
        for use in link_uses(trace, step):
            found[use.source, use.target, use.role].append(use)
    return {key: _middle(uses) for key, uses in found.items()}


def _middle(uses: list[LinkUse]) -> LinkUse:
    first = uses[0]
    transits = [use.transit_s for use in uses if use.transit_s is not None]
    return LinkUse(
        first.source,
        first.target,
        first.role,
        first.messages,
        first.bytes,
        median(transits) if transits else None,
        median(use.wait_s for use in uses),
    )


def _counted(run: RunReader) -> set[LinkKey]:
    """What the ranks counted, from the side of the receiver."""
    return {(peer, t.rank, role) for t in run.ranks for (peer, role), total in t.links.items() if total.taken}


def _planned_reductions(plan: Plan) -> dict[LinkKey, int]:
    """Bytes a step of every reduction, by link; where replicas take local steps, on average."""
    found: dict[LinkKey, float] = defaultdict(float)
    for group in reduction_groups(plan):
        for rank in group.ranks:
            for message in (m for part in group.rounds_of(rank) for m in part.sends):
                if message.num_bytes and message.peer != rank:
                    found[rank, message.peer, "reduce"] += message.num_bytes / (
                        1 if group.every_step else plan.local_steps
                    )
    return {key: round(num_bytes) for key, num_bytes in found.items()}


def _link_report(
    run: RunReader, key: LinkKey, planned: LinkUse | None, seen: LinkUse | None, reduced_bytes: int | None
) -> LinkReport:
    source, target, role = key
    receiver = run.ranks[target]
    total, steps = receiver.links.get((source, role)), receiver.links_steps
    counted: dict[str, float | None] = {
        name: getattr(total, name) / steps if total and steps else None
        for name in ("taken_bytes", "wait_s", "late", "late_s")
    }
    return LinkReport(
        source=source,
        target=target,
        role=role,
        predicted_bytes=planned.bytes if planned else reduced_bytes,
        bytes=seen.bytes if seen else counted["taken_bytes"],
        predicted_transit_s=planned.transit_s if planned else None,
        transit_s=seen.transit_s if seen else None,
        predicted_wait_s=planned.wait_s if planned else None,
        wait_s=seen.wait_s if seen else counted["wait_s"],
        late=counted["late"],
        late_s=counted["late_s"],
    )


# -- the sentence ---------------------------------------------------------------------------------


def name_difference(
    step_s: dict[str, float], ranks: Sequence[RankReport], links: Sequence[LinkReport]
) -> tuple[str, str]:
    """Summary and difference of a comparison, each a sentence.

    Args:
        step_s: predicted and measured.
        ranks, links: where to look for it.
    """
    both = [(row, row.predicted, row.measured) for row in ranks if row.predicted and row.measured]
    predicted_s, measured_s = step_s.get("predicted"), step_s.get("measured")
    if not both or not predicted_s or not measured_s:
        missing = "no whole step was measured" if not measured_s else "nothing was predicted"
        return f"There is nothing to compare: {missing}.", ""
    planned, seen = mean_terms([p for _, p, _ in both]), mean_terms([m for *_, m in both])
    name = max(TERMS, key=lambda n: abs(getattr(seen, n) - getattr(planned, n)))
    before, after = getattr(planned, name), getattr(seen, name)
    worst = max(both, key=lambda item: abs(getattr(item[2], name) - getattr(item[1], name)))
    share = measured_s / predicted_s - 1.0
    summary = (
        f"A step took {short_seconds(measured_s)}, {share:+.1%} against the predicted {short_seconds(predicted_s)}."
        if abs(share) >= SETTLED
        else f"A step took {short_seconds(measured_s)}, as predicted ({share:+.1%})."
    )
    text = (
        f"The largest difference is {WORDS[name]}: {short_seconds(after)} instead of {short_seconds(before)} on"
        f" average, most of it on rank {worst[0].rank} ({worst[0].device}), {short_seconds(getattr(worst[2], name))}"
        f" instead of {short_seconds(getattr(worst[1], name))}"
    )
    slowest = _slowest_link(links, worst[0].rank) if name == "pipeline_transfer" else ""
    return summary, f"{text}{slowest}."


def _slowest_link(links: Sequence[LinkReport], rank: int) -> str:
    """Of the messages that a rank waits for, those that took longest against what was predicted."""
    known = [
        (link, link.transit_s, link.predicted_transit_s)
        for link in links
        if link.target == rank and link.transit_s is not None and link.predicted_transit_s is not None
    ]
    if not known:
        return ""
    link, took_s, predicted_s = max(known, key=lambda item: abs(item[1] - item[2]))
    return (
        f"; a message from rank {link.source} was {short_seconds(took_s)} on its way, predicted"
        f" {short_seconds(predicted_s)}"
    )
