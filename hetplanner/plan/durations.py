"""Seconds that each rank needs for its parts of a step: from the catalog (cost) or from a profile (runtime).

Shape legend: N ranks, C chunks (what a rank holds of one stage; one a rank, in rank order, unless the plan is
interleaved: `Plan.chunks`).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Durations:
    """Compute times of a plan; transfers follow from the plan's links and need no entry here.

    Attributes:
        forward_s_C, backward_s_C: one micro-batch through a chunk (loss included on the last stage).
        optimizer_s_N: one optimiser step.
        encode_s_N, decode_s_N: one boundary message of the rank (codec and copy).
        reduce_s_N: the rank's share of adding up and re-packing gradients in one step.
        outer_s_N: one step of the outer optimizer, where replicas take local steps; None = nothing.
        message_s: fixed cost of handing one message to the network and of taking it.
        overlap: share of a boundary message's wire time for which its sender goes on computing; for the rest of it
            the sender waits. 1 = asynchronous sends.
        cores: compute slots that all ranks share (a rehearsal on one machine); None = every rank its own.
            The times above are for a rank that computes alone; k ranks at once on c cores run at c/k of that.
    """

    forward_s_C: np.ndarray
    backward_s_C: np.ndarray
    optimizer_s_N: np.ndarray
    encode_s_N: np.ndarray
    decode_s_N: np.ndarray
    reduce_s_N: np.ndarray
    outer_s_N: np.ndarray | None = None
    message_s: float = 0.0
    overlap: float = 1.0
    cores: float | None = None
