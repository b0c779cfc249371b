"""What a rebalancer knows of a swarm: which peer serves which stage, how fast, and which ones still download.

Legend of array suffixes: P peers, S stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetplanner.arrays import BoolArray, FloatArray, IntArray
from hetplanner.errors import InvalidInput


@dataclass(frozen=True)
class Move:
    """A peer that is to leave its stage for another, whose state it has to download first."""

    peer: str
    from_stage: int
    to_stage: int


@dataclass(frozen=True, eq=False)
class SwarmView:
    """Stages and live peers at one moment.

    Attributes:
        peers: ids of the live peers.
        stage_P: the stage that each serves or downloads.
        speed_P: measured work units per second; a stage of load 1 takes one unit for a micro-batch.
        serving_P: whether the peer has its stage's state and serves.
        load_S: work units of a micro-batch in each stage.
        download_s: seconds from a peer's leaving of a stage until it serves another.
        leaving_P: peers that have been told of their preemption: they serve on, but are not counted on.
        queue_P: micro-batches that wait at each peer; only the paper's policy reads it.

    Raises:
        InvalidInput: lengths that differ, an unknown stage, a speed or load that is not above 0.
    """

    peers: Sequence[str]
    stage_P: IntArray
    speed_P: FloatArray
    serving_P: BoolArray
    load_S: FloatArray
    download_s: float = 0.0
    leaving_P: BoolArray | None = None
    queue_P: FloatArray | None = None

    def __post_init__(self) -> None:
        count = len(self.peers)
        of_peers = (self.stage_P, self.speed_P, self.serving_P, self.leaving_P, self.queue_P)
        if any(array is not None and len(array) != count for array in of_peers):
            raise InvalidInput(f"swarm view: arrays of peers must all have {count} entries, one a peer")
        if not len(self.load_S) or not (self.load_S > 0).all():
            raise InvalidInput("swarm view: load_S: every stage must have a load above 0")
        if count and not (self.stage_P.min() >= 0 and self.stage_P.max() < len(self.load_S)):
            raise InvalidInput(f"swarm view: stage_P: must be from 0 to {len(self.load_S) - 1}")
        if not (self.speed_P > 0).all():
            raise InvalidInput("swarm view: speed_P: must be above 0; give an unmeasured peer the best known speed")

    @cached_property
    def serving_S(self) -> FloatArray:
        """Micro-batches per second of the peers that serve."""
        return self._capacity(np.where(self.serving_P, self.speed_P, 0.0))

    @cached_property
    def coming_S(self) -> FloatArray:
        """The same once all downloads are finished and leaving peers have left."""
        return self._capacity(np.where(self.staying_P, self.speed_P, 0.0))

    @cached_property
    def staying_P(self) -> BoolArray:
        """Peers that have not been told of their preemption."""
        return np.ones(len(self.peers), dtype=np.bool_) if self.leaving_P is None else ~self.leaving_P

    @cached_property
    def servers_S(self) -> IntArray:
        """Peers that serve, by stage."""
        return np.bincount(self.stage_P[self.serving_P], minlength=len(self.load_S))

    def _capacity(self, speed_P: FloatArray) -> FloatArray:
        return np.bincount(self.stage_P, weights=speed_P, minlength=len(self.load_S)) / self.load_S
