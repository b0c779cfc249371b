"""The slower lower bound of DT-FM's objective, for a problem; also in a process of its own, beside a search."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import numpy as np

from hetplanner.cost.bounds.placement_bound import improve_bound, warm_up
from hetplanner.cost.dtfm import pair_costs
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.plan.problem import Problem
from hetplanner.planners.finish import usable_rows
from hetplanner.planners.shapes import fixed_shape

if TYPE_CHECKING:
    from hetplanner.planners.interface import SearchResult

DEFAULT_S = 60.0
# How long the process is waited for once it was asked to end.
END_S = 5.0
POLL_S = 0.2


def tighter_bound(
    problem: Problem,
    *,
    seconds: float | None = DEFAULT_S,
    turns: int | None = None,
    on_better: Callable[[float], None] = lambda value: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> float:
    """A lower bound of the objective `dtfm` that takes seconds, see :mod:`hetplanner.cost.bounds.placement_bound`.

    Args:
        problem: with a fixed shape.
        seconds: of wall time at most, without that of compiling the kernels; None for none.
        turns: see :func:`hetplanner.cost.bounds.placement_bound.improve_bound`; with `turns` and without `seconds`
            the same problem has the same bound.
        on_better: called with every better bound.
        should_stop: asked several times a second; True ends the work.

    Returns:
        Seconds of the published objective: no placement costs less.

    Raises:
        InvalidInput: if the objective is another, the shape is not fixed, or the seconds are not positive.
    """
    check_problem(problem, seconds)
    (stages, replicas), rows = fixed_shape(problem), usable_rows(problem)
    tables = problem.cluster.published_delay_ms_DD, problem.cluster.published_bandwidth_gbps_DD
    warm_up()
    end = np.inf if seconds is None else time.monotonic() + seconds

    def is_cancelled() -> bool:
        return time.monotonic() >= end or should_stop()

    best = 0.0
    costs = pair_costs(*tables, replicas, rows=rows)
    for best in improve_bound(*costs, stages, replicas, turns=turns, is_cancelled=is_cancelled):
        on_better(best)
    return best


def check_problem(problem: Problem, seconds: float | None) -> None:
    """Raises InvalidInput where there is no such bound."""
    if problem.objective != "dtfm":
        raise InvalidInput(f"tighter bound: only for the objective dtfm, got {problem.objective}")
    if seconds is not None and not seconds > 0:
        raise InvalidInput(f"tighter bound: must be more than 0 seconds, got {seconds:g}")


class BoundProcess:
    """A process that works on the bound of a problem until its seconds are over or it is closed."""

    def __init__(self, problem: Problem, seconds: float) -> None:
        """Starts it.

        Raises:
            InvalidInput: see :func:`tighter_bound`.
        """
        check_problem(problem, seconds)
        fixed_shape(problem)
        context = multiprocessing.get_context("spawn")
        self._values, theirs = context.Pipe(duplex=False)
        self.best = 0.0
        self.is_over = False
        self._process = context.Process(target=_serve, args=(problem, seconds, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def poll(self, timeout_s: float = 0.0) -> float:
        """The best bound so far, after waiting so long for a better one."""
        while not self.is_over and self._values.poll(timeout_s):
            try:
                self.best = max(self.best, float(self._values.recv()))
            except (EOFError, OSError):
                self.is_over = True
            timeout_s = 0.0
        return self.best

    def wait(self, should_stop: Callable[[], bool], on_poll: Callable[[float], None]) -> float:
        """Waits until its seconds are over or `should_stop`, then ends it and returns the best bound.

        Args:
            should_stop: asked several times a second.
            on_poll: told the best bound so far as often.
        """
        while not (self.is_over or should_stop()):
            on_poll(self.poll(POLL_S))
        return self.close()

    def close(self) -> float:
        """Ends the process and returns the best bound."""
        if self._values.closed:
            return self.best
        self.poll()
        self._process.terminate()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._values.close()
        self.is_over = True
        return self.best


def with_bound(result: SearchResult, bound: float) -> SearchResult:
    """The result with a higher lower bound, in its plan's provenance too."""
    bound = min(bound, result.value)
    if bound <= result.lower_bound:
        return result
    provenance = result.plan.provenance.replace(lower_bound=bound)
    return replace(result, plan=result.plan.replace(provenance=provenance), lower_bound=bound)


def _serve(problem: Problem, seconds: float, values: Connection) -> None:
    parent = multiprocessing.parent_process()

    def is_alone() -> bool:
        return parent is not None and not parent.is_alive()

    try:
        tighter_bound(problem, seconds=seconds, on_better=values.send, should_stop=is_alone)
    except (HetplannerError, OSError, KeyboardInterrupt):
        pass  # the planner says what is wrong; or the reader has ended
    finally:
        values.close()
