"""Preemption traces drawn from a seed: a population with random lifetimes, and fleets made of an observed trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetplanner.elastic.forecast.preemptions import MAX_LIVES, Life, PreemptionTrace
from hetplanner.errors import InvalidInput

AWAY_S = 600.0
"""Mean wait until the market gives a new instance for a preempted one: assumed."""


def generate_preemptions(
    seed: int,
    *,
    peers: int,
    lifetime_s: float,
    duration_s: float = 32 * 3600.0,
    speeds: Sequence[float] = (1.0,),
    away_s: float = AWAY_S,
) -> PreemptionTrace:
    """A population in which every place is taken, preempted after a while, and taken again by a new peer.

    Args:
        seed: of numpy's generator; equal seeds give equal traces.
        peers: places, all taken at the start.
        lifetime_s: mean of the (exponential) time to preemption.
        duration_s: length of the trace.
        speeds: a new peer has any of them with equal chance.
        away_s: mean of the (exponential) time until a place is taken again; 0 = at once.

    Raises:
        InvalidInput: no peers, a time that is not above 0, or more lives than a trace holds.
    """
    expected = peers * (1 + duration_s / (lifetime_s + away_s)) if lifetime_s > 0 and away_s >= 0 else 0.0
    if peers < 1 or not duration_s > 0 or not expected > 0 or not speeds:
        raise InvalidInput("peers, lifetime_s, duration_s and speeds: must be above 0; away_s: must be 0 or more")
    if expected > MAX_LIVES / 2:
        raise InvalidInput(f"lifetime_s: about {expected:.0f} lives; a trace holds {MAX_LIVES}; take fewer peers")
    rng = np.random.default_rng(seed)
    lives = []
    for place in range(peers):
        start, count = 0.0, 0
        while start < duration_s:
            end = start + max(rng.exponential(lifetime_s), 1e-3)
            speed = float(speeds[int(rng.integers(len(speeds)))])
            lives.append(Life(peer=f"{place}.{count}", start=start, end=min(end, duration_s), speed=speed))
            start, count = end + rng.exponential(away_s), count + 1
    mix = "/".join(f"{speed:g}" for speed in speeds)
    name = f"{peers} peers, life {lifetime_s / 3600:g} h, speeds {mix}, seed {seed}"
    return PreemptionTrace(name=name, synthetic=True, duration=duration_s, lives=tuple(lives))


def make_fleet(
    trace: PreemptionTrace, copies: int, seed: int, *, speeds: Sequence[float] = (1.0,), shifted: bool = True
) -> PreemptionTrace:
    """A fleet over several zones that all have an observed zone's preemptions, each from another moment on.

    Observed traces are of a dozen instances, a swarm has hundreds. Every copy begins at a random moment of the trace
    and, at the trace's end, goes on at its start.

    Args:
        trace: one zone.
        copies: zones.
        seed: of the moments and speeds.
        speeds: every copy of a peer has any of them with equal chance.
        shifted: False: all zones are preempted at the same moment, the hardest case.

    Raises:
        InvalidInput: no copies, or more lives than a trace holds.
    """
    if copies < 1 or not speeds or 2 * copies * len(trace.lives) > MAX_LIVES:
        raise InvalidInput(f"copies: must be from 1 to {MAX_LIVES // (2 * len(trace.lives))}, got {copies}")
    rng = np.random.default_rng(seed)
    lives: list[Life] = []
    for zone in range(copies):
        shift = float(rng.uniform(0, trace.duration)) if shifted else 0.0
        for i, life in enumerate(trace.lives):
            speed = float(speeds[int(rng.integers(len(speeds)))])
            lives += _shifted(life, f"{zone}.{i}", shift, speed, trace.duration)
    note = (
        f"{copies} copies of a zone" + (", each from another moment on" if shifted else " at once") + f", seed {seed}"
    )
    mix = "/".join(f"{speed:g}" for speed in speeds)
    return PreemptionTrace(
        name=f"{trace.name} × {copies}, speeds {mix}", source=trace.source, license=trace.license, note=note,
        synthetic=True, duration=trace.duration, lives=tuple(lives),
    )  # fmt: skip


def _shifted(life: Life, peer: str, shift_s: float, speed: float, duration_s: float) -> list[Life]:
    """A life as it is seen from a later moment on: one piece, or two if that moment is inside it."""
    start, end = life.start - shift_s, life.end - shift_s
    if end <= 0:
        start, end = start + duration_s, end + duration_s
    pieces = [(start, min(end, duration_s))] if start >= 0 else [(0.0, end), (start + duration_s, duration_s)]
    return [Life(peer=peer, start=a, end=b, speed=speed) for a, b in pieces if b - a > 1e-9]
