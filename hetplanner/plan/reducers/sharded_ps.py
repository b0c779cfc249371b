"""Sharded parameter server: every member sends shard k to member k, which adds up and sends the sum to all.

Two rounds over all pairs of members: few latencies, equal load, every link in use.
Source: DT-FM section 3.2 (colocated sharded parameter server).
"""

from collections.abc import Iterator

import numpy as np

from hetplanner.plan.reducers.program import Members, Phase, Reducer, Transfer, cut_range


class ShardedServer(Reducer):
    """See the module."""

    name = "sharded-ps"

    def transfers(self, members: Members, num_elements: int) -> Iterator[Transfer]:
        """Parts to the shards' owners, sums back to all."""
        size = len(members)
        shards = cut_range(0, num_elements, size)
        # Starting with the next member spreads the load: no two members send to the same one first.
        pairs = [(i, (i + k) % size) for k in range(1, size) for i in range(size)]
        for i, owner in pairs:
            yield Transfer(0, i, owner, *shards[owner], "add")
        for owner, i in pairs:
            yield Transfer(1, owner, i, *shards[owner], "copy")

    def phases(self, members: Members, num_elements: int) -> tuple[Phase, ...]:
        """All pairs at once, twice."""
        size = len(members)
        sender_F, receiver_F = np.nonzero(~np.eye(size, dtype=bool))
        phase = Phase(sender_F, receiver_F, np.ones_like(sender_F), -(-num_elements // size))
        return phase, phase
