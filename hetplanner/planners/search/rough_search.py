"""A search without compiled kernels, for the first minute of an installation: another process compiles them meanwhile.

It climbs from the first guesses by exchanges of two devices and small changes of cut and shares, scored by the closed
form itself: some hundred placements a second, where kernels score some hundred thousand. What it finds goes into the
populations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hetplanner.planners.interface import LOADING, Progress
from hetplanner.planners.search import compiled_parts

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from hetplanner.planners.search.population import Candidate, Evolution

Genes = tuple[NDArray[Any], ...]
LOOK_EVERY_S = 0.1
CURIOSITY = 0.4
"""Share of moves in another population than the best, and from another candidate than its best."""
AHEAD = 5
"""Populations that moves are made in."""
OTHER_MOVES = 0.3
"""Share of moves that change something else than the placement."""


@runtime_checkable
class Rough(Protocol):
    """A species that scores candidates without kernels.

    Attributes:
        kernel_parts: parts of kernels that its search needs, see `hetplanner.planners.search.compiled_parts`.
    """

    stages: int
    replicas: int
    kernel_parts: tuple[str, ...]

    def rough(self, genes: Genes) -> Candidate:
        """A candidate as its genes stand."""
        ...

    def rough_starts(self) -> list[Genes]:
        """More layouts to begin with."""
        ...


def search_roughly(evolutions: Sequence[Evolution], progress: Progress) -> None:
    """Searches until the kernels are compiled or the search is cancelled; returns at once where they are.

    Args:
        evolutions: the populations; those with first guesses take part.
        progress: the clock and the events; nothing of a budget in seconds is spent.
    """
    parts = sorted({part for e in evolutions for part in getattr(e.species, "kernel_parts", ())})
    rough = [e for e in evolutions if e.population and isinstance(e.species, Rough) and e.species.kernel_parts]
    if not rough or compiled_parts.is_ready(parts) is not False:
        return
    rng = np.random.default_rng(0)
    ranked = sorted(rough, key=lambda e: e.value)
    starts = [(e, genes) for e in ranked if isinstance(e.species, Rough) for genes in e.species.rough_starts()]
    with _compiling(parts) as process:
        look_s = 0.0
        while not progress.is_cancelled():
            if time.monotonic() > look_s:
                if process is None or process.poll() is not None or compiled_parts.is_ready(parts):
                    return
                look_s = time.monotonic() + LOOK_EVERY_S
            if starts:
                _score(*starts.pop(0))
            else:
                _move(rough, rng)
            progress.evaluations += 1
            if progress.is_event_due():
                min(rough, key=lambda e: e.value).report(LOADING)


@contextmanager
def _compiling(parts: Sequence[str]) -> Iterator[subprocess.Popen[bytes] | None]:
    """The process that compiles, ended behind the search for which it was started; None if it does not start."""
    process = compiled_parts.begin_compiling(parts, in_foreground=True)
    try:
        yield process
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _move(evolutions: Sequence[Evolution], rng: np.random.Generator) -> None:
    chosen = min(evolutions, key=lambda e: e.value)
    if rng.random() < CURIOSITY:
        ahead = sorted(evolutions, key=lambda e: e.value)[:AHEAD]
        chosen = ahead[int(rng.integers(len(ahead)))]
    species = chosen.species
    assert isinstance(species, Rough)
    parent = chosen.best
    if rng.random() < CURIOSITY:
        parent = chosen.population[int(rng.integers(len(chosen.population)))]
    child = species.rough(changed(parent.genes, species.stages * species.replicas, rng))
    if child.value < parent.value:
        chosen.adopt([child])


def _score(evolution: Evolution, genes: Genes) -> None:
    species = evolution.species
    assert isinstance(species, Rough)
    evolution.adopt([species.rough(genes)])


def changed(genes: Genes, used: int, rng: np.random.Generator) -> Genes:
    """Genes after one move: two devices exchanged (at least one of them in use), or one of the other genes changed.

    The others are a cut and shares, of which one moves by one, or the order of the stages, of which a part is turned.
    """
    place, *others = (gene.copy() for gene in genes)
    move = _turn if len(others) == 1 else _shift
    if rng.random() < OTHER_MOVES and move(others, rng):
        return (place, *others)
    one, two = int(rng.integers(used)), int(rng.integers(len(place)))
    place[[one, two]] = place[[two, one]]
    return (place, *others)


def _turn(others: Sequence[NDArray[Any]], rng: np.random.Generator) -> bool:
    """Turns a part of the order round; false where it has no part."""
    order = others[0]
    if len(order) < 2:
        return False
    start, end = sorted(rng.choice(len(order) + 1, size=2, replace=False).tolist())
    order[start:end] = order[start:end][::-1].copy()
    return True


def _shift(others: Sequence[NDArray[Any]], rng: np.random.Generator) -> bool:
    """Moves one boundary of a cut, or one micro-batch between two pipelines; false where it cannot."""
    cut, share = others
    if rng.random() < 0.5 and len(cut) > 2:
        k = int(rng.integers(1, len(cut) - 1))
        to = int(cut[k]) + (1 if rng.random() < 0.5 else -1)
        if not cut[k - 1] < to < cut[k + 1]:
            return False
        cut[k] = to
        return True
    if len(share) < 2:
        return False
    source, target = rng.choice(len(share), size=2, replace=False)
    if share[source] < 2:
        return False
    share[source] -= 1
    share[target] += 1
    return True
