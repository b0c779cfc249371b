"""Another order of a plan's actions, for measured seconds: that of a faster or slower machine.

A list schedule for the true durations need not be the fastest: it is not monotone. So several are simulated.
Source: Graham 1969 (bounds on multiprocessing timing anomalies); the candidates are ours.
"""

from __future__ import annotations

from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.simulator.simulation import summarise_plan

ORDER_SCALES = (None, 0.125, 0.25, 0.5, 2.0, 4.0, 8.0)
"""Candidates, as seconds of computing per second of the cost model's; None: the cost model's own."""
LEAST_GAIN = 1e-6
"""Another order must be faster by this share than the one of the plan."""


def reorder(plan: Plan, durations: Durations | None = None, *, steps: int = 1, fair_links: bool = False) -> Plan:
    """The plan with the order of actions that the simulator finds fastest; nothing else changes.

    A run in this order adds up gradients of micro-batches in another sequence, so its losses agree to rounding only.

    Args:
        plan: what to order anew; on the cluster as measured, if it was.
        durations: measured seconds per chunk and rank; None takes the cost model's.
        steps: the last of so many simulated steps is judged.
        fair_links: how the simulator shares links; see `simulate`.

    Returns:
        The same plan where no candidate is faster.
    """
    seconds = {
        scale: summarise_plan(plan.replace(order_scale=scale), durations, steps=steps, fair_links=fair_links).step_s
        for scale in dict.fromkeys((plan.order_scale, *ORDER_SCALES))
    }
    best = min(seconds, key=lambda scale: seconds[scale])
    if seconds[best] >= seconds[plan.order_scale] * (1.0 - LEAST_GAIN):
        return plan
    return plan.replace(order_scale=best)
