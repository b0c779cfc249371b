"""hetplanner runs report, of a swarm: who did what, who went, how long closing a step took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetplanner.cli.output import bold, console, table
from hetplanner.units import short_seconds

if TYPE_CHECKING:
    from hetplanner.runs.reports.swarm_report import SwarmReport

SHOWN_PEERS = 32
"""More peers than this are left to --json and --html."""


def print_swarm_report(found: SwarmReport) -> None:
    """The report as tables, the sentence last."""
    console.print(bold(found.run), found.state, found.message, sep="  ")
    curve = f", loss {found.losses[0][1]:.4f} → {found.losses[-1][1]:.4f}" if found.losses else ""
    console.print(f"{found.steps} of {found.planned_steps} steps{curve}")
    if found.counts:
        console.print(", ".join(f"{kind}: {count}" for kind, count in found.counts.items()))
    _print_peers(found)
    if found.closing:
        rows = table("Closing a step", "phase", "times", "median", "longest", right=("times", "median", "longest"))
        for time in found.closing:
            rows.add_row(time.phase, str(time.times), short_seconds(time.median_s), short_seconds(time.most_s))
        console.print(rows)
    for sentence in (*found.unknown, found.difference):
        console.print(sentence)


def _print_peers(found: SwarmReport) -> None:
    numbers = ("micro-batches", "share", "measured", "by the plan", "served")
    rows = table("Peers by stage", "stage", "peer", "at the end", *numbers, right=numbers)
    for peer in found.peers[:SHOWN_PEERS]:
        rates = ("–" if rate is None else f"{rate:.3g}/s" for rate in (peer.speed, peer.expected))
        done = "–" if peer.micro_batches is None else str(peer.micro_batches)
        share = "–" if peer.share is None else f"{peer.share:.1%}"
        rows.add_row(str(peer.stage), peer.name, peer.end, done, share, *rates, short_seconds(peer.served_s))
    if found.peers:
        console.print(rows)
    if len(found.peers) > SHOWN_PEERS:
        console.print(f"… and {len(found.peers) - SHOWN_PEERS} more")
