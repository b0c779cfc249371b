"""hetplanner runs report: a run against its prediction, in tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hetplanner.cli.output import bold, console, table
from hetplanner.cli.planning.calibrate import print_fit
from hetplanner.units import short_bytes, short_seconds

if TYPE_CHECKING:
    from hetplanner.cluster.model import Cluster
    from hetplanner.runs.reports.comparison import LinkReport, RankReport
    from hetplanner.runs.reports.report import RunReport

SHOWN_LINKS = 16
"""More links than this are left to --json."""


def print_report(found: RunReport, fitted: Cluster | None) -> None:
    """The report as tables, the sentence last."""
    console.print(bold(found.run), found.state, found.message, sep="  ")
    console.print(f"{found.steps} of {found.planned_steps} steps" + _curves(found))
    _print_terms(found)
    _print_ranks(found.ranks)
    _print_links(found)
    if found.calibration is not None and fitted is not None:
        print_fit(found.calibration, fitted)
        console.print(
            f"the re-fitted model predicts {short_seconds(found.step_s['refitted'])} a step for this plan"
            + (f", measured {short_seconds(found.step_s['measured'])}" if "measured" in found.step_s else "")
        )
    console.print(found.difference)


def _curves(found: RunReport) -> str:
    parts = []
    if found.losses:
        parts.append(f"loss {found.losses[0][1]:.4f} → {found.losses[-1][1]:.4f}")
    if found.evaluations:
        parts.append(f"validation {found.evaluations[-1]}")
    if found.grad_norms:
        norms = sorted(norm for _, norm in found.grad_norms)
        middle, most = norms[len(norms) // 2], norms[-1]
        parts.append(f"gradient norm {found.grad_norms[-1][1]:.3g} (median {middle:.3g}, most {most:.3g})")
    return "".join(f", {part}" for part in parts)


def _print_terms(found: RunReport) -> None:
    from hetplanner.runs.reports.comparison import WORDS

    sources: list[str] = [s for s in ("catalog", "predicted", "measured", "refitted") if s in found.terms]
    rows = table("Seconds of a step, mean over ranks", "term", *sources, "difference", right=(*sources, "difference"))
    for name, words in WORDS.items():
        seconds = {source: getattr(found.terms[source], name) for source in sources}
        rows.add_row(words, *map(short_seconds, seconds.values()), _difference(seconds))
    steps = {source: found.step_s[source] for source in sources}
    rows.add_row(bold("step"), *map(short_seconds, steps.values()), _difference(steps))
    console.print(rows)


def _difference(seconds: Mapping[str, float]) -> str:
    predicted, measured = seconds.get("predicted"), seconds.get("measured")
    if predicted is None or measured is None:
        return "–"
    words = ("+" if measured >= predicted else "-") + short_seconds(abs(measured - predicted))
    return words + (f" ({measured / predicted - 1.0:+.1%})" if predicted > 0 else "")


def _print_ranks(ranks: tuple[RankReport, ...]) -> None:
    from hetplanner.runs.reports.comparison import WORDS

    columns = (*WORDS.values(), "memory")
    rows = table("Ranks, predicted → measured", "rank", "device", *columns, right=("rank", *columns))
    for row in ranks:
        both = row.predicted, row.measured
        cells = [" → ".join("–" if t is None else short_seconds(getattr(t, n)) for t in both) for n in WORDS]
        rows.add_row(str(row.rank), row.device, *cells, short_bytes(row.memory_bytes) if row.memory_bytes else "–")
    console.print(rows)


def _print_links(found: RunReport) -> None:
    columns = ("bytes", "on the way", "waited", "late")
    rows = table("Links in a step, predicted → measured", "from", "to", "role", *columns, right=columns)
    shown = sorted(found.links, key=lambda link: -max(link.wait_s or 0.0, link.predicted_wait_s or 0.0))[:SHOWN_LINKS]
    for link in shown:
        rows.add_row(*_link_cells(link))
    console.print(rows)
    if len(found.links) > SHOWN_LINKS:
        console.print(f"{len(found.links) - SHOWN_LINKS} more links with --json", style="dim")


def _link_cells(link: LinkReport) -> tuple[str, ...]:
    def seconds(value: float | None) -> str:
        return "–" if value is None else short_seconds(value)

    def size(value: float | None) -> str:
        return "–" if value is None else short_bytes(value)

    late = "–" if link.late is None else f"{link.late:.2g} by {seconds(link.late_s)}" if link.late else "0"
    return (
        str(link.source),
        str(link.target),
        link.role,
        f"{size(link.predicted_bytes)} → {size(link.bytes)}",
        f"{seconds(link.predicted_transit_s)} → {seconds(link.transit_s)}",
        f"{seconds(link.predicted_wait_s)} → {seconds(link.wait_s)}",
        late,
    )
