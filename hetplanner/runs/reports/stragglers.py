"""Stragglers: ranks that compute slower, links that take longer than was predicted for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hetplanner.runs.reports.comparison import LinkReport, RankReport
from hetplanner.simulator.terms import StepTerms
from hetplanner.units import short_seconds

SLOWER = 1.25
"""Against the other ranks' own ratio of measured to predicted: a machine that is slow as a whole has no straggler."""
NOTABLE = 0.02
"""Share of a step that the delay must cost."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """One of them.

    Attributes:
        rank: the late one, or for a link the one that waits.
        lost_s: seconds a step more than expected.
        text: a sentence.
    """

    rank: int
    lost_s: float
    text: str


def stragglers(ranks: Sequence[RankReport], links: Sequence[LinkReport], step_s: float | None) -> list[Straggler]:
    """The worst first; empty where nothing was predicted or measured, or all do as was said.

    Args:
        ranks, links: of a comparison.
        step_s: seconds of a measured step.
    """
    if not step_s:
        return []
    found = [*_slow_ranks(ranks), *_slow_links(ranks, links)]
    return sorted((s for s in found if s.lost_s >= NOTABLE * step_s), key=lambda s: -s.lost_s)


def own_work_s(terms: StepTerms) -> float:
    """What a rank does itself in a step: compute and update."""
    return terms.compute + terms.optimizer


def _slow_ranks(ranks: Sequence[RankReport]) -> list[Straggler]:
    both = [(r, own_work_s(r.predicted), own_work_s(r.measured)) for r in ranks if r.predicted and r.measured]
    ratios = [measured_s / predicted_s for _, predicted_s, measured_s in both if predicted_s > 0]
    if len(ratios) < 2:
        return []
    usual = median(ratios)
    found = []
    for row, predicted_s, measured_s in both:
        expected_s = predicted_s * usual
        if measured_s > SLOWER * expected_s > 0:
            others = "" if abs(usual - 1) < 0.1 else f" (the others take {usual:.2g} times what was predicted)"
            found.append(
                Straggler(
                    row.rank,
                    measured_s - expected_s,
                    f"Rank {row.rank} ({row.device}) computes {short_seconds(measured_s)} a step, expected"
                    f" {short_seconds(expected_s)}{others}.",
                )
            )
    return found


def _slow_links(ranks: Sequence[RankReport], links: Sequence[LinkReport]) -> list[Straggler]:
    names = {row.rank: row.device for row in ranks}
    found = []
    for link in links:
        took_s, predicted_s = link.transit_s, link.predicted_transit_s
        waited_s, planned_s = link.wait_s, link.predicted_wait_s
        if took_s is None or predicted_s is None or waited_s is None or planned_s is None or predicted_s <= 0:
            continue
        if took_s > SLOWER * predicted_s and waited_s > planned_s:
            found.append(
                Straggler(
                    link.target,
                    waited_s - planned_s,
                    f"{link.role.capitalize()}s from rank {link.source} ({names.get(link.source, '?')}) to rank"
                    f" {link.target} ({names.get(link.target, '?')}) take {short_seconds(took_s)} on their way,"
                    f" predicted {short_seconds(predicted_s)}.",
                )
            )
    return found
