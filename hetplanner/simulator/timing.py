"""Simulated times without spans, by the compiled kernels: fast enough to judge a search's finalists."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import InvalidInput
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.simulator.jitter import COMPUTE, NETWORK, STILL, Jitter
from hetplanner.simulator.packing import PackedPlan, pack_plan


@dataclass(frozen=True)
class SimulatedTimes:
    """Times of a simulation.

    Attributes:
        step_s: of the last step, from the end of the step before.
        busy_s_N: seconds every rank computes in the last step (forward, backward, optimizer).
    """

    step_s: float
    busy_s_N: FloatArray


@dataclass(frozen=True)
class Spread:
    """Step times of several simulations that differ in the seed of their jitter.

    Attributes:
        step_s: of every run, the seeds counting up from `seed`.
        still_s: the step without jitter.
    """

    jitter: Jitter
    seed: int
    step_s: tuple[float, ...]
    still_s: float

    @property
    def median_s(self) -> float:
        """Half of the runs were faster."""
        return float(np.median(self.step_s))

    @property
    def p05_s(self) -> float:
        """One run of twenty was faster."""
        return float(np.percentile(self.step_s, 5))

    @property
    def p95_s(self) -> float:
        """One run of twenty was slower."""
        return float(np.percentile(self.step_s, 95))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        summary = {"median_s": self.median_s, "p05_s": self.p05_s, "p95_s": self.p95_s}
        return asdict(self) | summary | {"runs": len(self.step_s)}


def simulate_spread(
    plan: Plan, jitter: Jitter, *, runs: int = 20, seed: int = 0, steps: int = 1, model: CostModel | None = None
) -> Spread:
    """Simulates a plan several times with jitter.

    Args:
        plan: what to time.
        jitter: how much times vary.
        runs: how many simulations, with seeds `seed`, `seed` + 1, …
        seed: of the first run.
        steps: the last of so many steps is timed.
        model: cost model of the plan's problem, if already at hand.
    """
    kinds = _kinds_of_step(plan, None, model)
    times = tuple(_mean_times(kinds, steps=steps, jitter=jitter, seed=seed + i).step_s for i in range(runs))
    return Spread(jitter, seed, times, _mean_times(kinds, steps=steps, jitter=STILL, seed=seed).step_s)


def simulate_step_s(plan: Plan, model: CostModel | None = None, *, steps: int = 1) -> float:
    """Seconds of one simulated step of a plan, contention included: what `simulate` gives, without its trace.

    With local steps the mean of steps with and without the stages' reductions.

    Args:
        plan: what to time.
        model: cost model of the plan's problem, if already at hand.
        steps: the time of the last of so many steps; 1 judges a step that starts with all ranks idle.
    """
    return _mean_times(_kinds_of_step(plan, None, model), steps=steps, jitter=STILL, seed=0).step_s


def simulate_times(
    plan: Plan,
    durations: Durations | None = None,
    *,
    model: CostModel | None = None,
    steps: int = 1,
    jitter: Jitter = STILL,
    seed: int = 0,
) -> SimulatedTimes:
    """Simulated times of a plan; arguments as of `hetplanner.simulator.simulation.simulate`.

    Raises:
        InvalidInput: if the ranks share cores; only the event engine divides those.
    """
    if durations is not None and durations.cores_N is not None:
        raise InvalidInput("durations.cores_N: ranks that share cores cannot be timed by the kernel; use simulate()")
    return _mean_times(_kinds_of_step(plan, durations, model), steps=steps, jitter=jitter, seed=seed)


def _kinds_of_step(plan: Plan, durations: Durations | None, model: CostModel | None) -> list[tuple[float, PackedPlan]]:
    """The plan's steps packed, each with its share: those that synchronise replicas and, with local steps, others."""
    packed = pack_plan(plan, durations, model=model)
    (_, share), *others = plan.kinds_of_step
    kinds = [(share, packed)]
    for step, share in others:
        fragment = plan.fragment_at(step)
        kinds.append((share, pack_plan(plan, durations, model=model, order=packed.order, fragment=fragment)))
    return kinds


def _mean_times(kinds: list[tuple[float, PackedPlan]], *, steps: int, jitter: Jitter, seed: int) -> SimulatedTimes:
    found = [(share, time_packed(packed, steps=steps, jitter=jitter, seed=seed)) for share, packed in kinds]
    if len(found) == 1:
        return found[0][1]
    step_s = sum(share * times.step_s for share, times in found)
    return SimulatedTimes(step_s, np.sum([share * times.busy_s_N for share, times in found], axis=0))


def time_packed(packed: PackedPlan, *, steps: int = 1, jitter: Jitter = STILL, seed: int = 0) -> SimulatedTimes:
    """Times a packed plan; see `simulate_times`. Raises RuntimeError if a message has no sender."""
    from hetplanner.simulator import kernel

    work_KI, wire_KX = _varied(packed, steps, jitter, seed)
    end_s_KN = np.zeros((steps, len(packed.first_N)))
    wire_s_KX, latency_s_KX = packed.wire_s_X * wire_KX, packed.latency_s_X * wire_KX
    program = (packed.first_N, packed.end_N, packed.wait_I, work_KI, packed.send_I)
    messages = (packed.link_X, wire_s_KX, latency_s_KX, packed.target_X, packed.num_links)
    if packed.has_nics:
        out_s_KX, in_s_KX = packed.out_s_X * wire_KX, packed.in_s_X * wire_KX
        nics = (packed.out_X, out_s_KX, packed.in_X, in_s_KX, packed.num_hosts)
        kept = (np.full(steps * len(packed.link_X), kernel.UNSENT), np.empty((0, 0)))
        done = kernel.run_timed(*program, *messages, *nics, steps, *kept, end_s_KN)
    else:
        done = kernel.run_free(*program, *messages, steps, end_s_KN)
    if done < len(packed.first_N):
        raise RuntimeError(f"{len(packed.first_N) - done} ranks wait for messages that no rank sends")
    began = float(end_s_KN[-2].max()) if steps > 1 else 0.0
    counted = (packed.kind_I == kernel.COMPUTE) | (packed.kind_I == kernel.STEP)
    busy = np.bincount(packed.rank_I, weights=np.where(counted, work_KI[-1], 0.0), minlength=len(packed.first_N))
    return SimulatedTimes(float(end_s_KN[-1].max()) - began, np.asarray(busy, dtype=np.float64))


def _varied(packed: PackedPlan, steps: int, jitter: Jitter, seed: int) -> tuple[FloatArray, FloatArray]:
    """Seconds of every instruction and factor of every message, by step if they vary; [K, I] and [K, X]."""
    work_KI, wire_KX = packed.work_I[None, :], np.ones((1, len(packed.source_X)))
    if jitter.compute > 0:
        work_KI = np.repeat(work_KI, steps, axis=0)
    if jitter.network > 0:
        wire_KX = np.repeat(wire_KX, steps, axis=0)
    for k in range(steps if jitter != STILL else 0):
        for n, (first, end) in enumerate(zip(packed.first_N, packed.end_N, strict=True)):
            if jitter.compute > 0:
                action = packed.action_I[first:end]
                work_KI[k, first:end] *= jitter.factors(seed, k, n, COMPUTE, int(action.max()) + 1)[action]
            if jitter.network > 0:
                sent = packed.send_I[first:end]
                sent = sent[sent >= 0]
                wire_KX[k, sent] = jitter.factors(seed, k, n, NETWORK, len(sent))
    return work_KI, wire_KX
