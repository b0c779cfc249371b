"""Ring: each member sends one chunk to its neighbour in every round; after two turns all members have the sum.

2(M-1) rounds of 1/M of the bucket: the fewest bytes and one link out of and into every member, but many latencies.
The order of the members is a chain of nearest neighbours, so that a ring enters and leaves a site once.
Source: Patarasuk and Yuan, JPDC 2009 (bandwidth-optimal ring); the choice of the order is ours.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hetplanner.plan.reducers.program import FloatArray, Members, Part, Phase, Reducer, Transfer, cut_range

# Chains are grown from this many members; the best ring of them is taken.
MOST_STARTS = 8


class Ring(Reducer):
    """See the module."""

    name = "ring"

    def transfers(self, members: Members, num_elements: int) -> Iterator[Transfer]:
        """One turn adds up, the next carries the sums round."""
        order, size = find_ring(members, num_elements), len(members)
        chunks = cut_range(0, num_elements, size)
        for turn in range(2 * (size - 1)):
            adds = turn < size - 1
            for place in range(size):
                # In turn t a member passes on the chunk it took in turn t - 1; the sums start one place further.
                chunk = chunks[(place - turn) % size]
                ends = order[place], order[(place + 1) % size]
                yield Transfer(turn, *ends, *chunk, "add" if adds else "copy")

    def phases(self, members: Members, num_elements: int) -> tuple[Phase, ...]:
        """The same neighbours in every round."""
        order, size = find_ring(members, num_elements), len(members)
        pairs = [(order[i], order[(i + 1) % size]) for i in range(size)]
        return (Phase.of(pairs, -(-num_elements // size), rounds=2 * (size - 1)),)

    def phases_of(self, part: Part, members: Members, num_elements: int) -> tuple[Phase, ...]:
        """Each is one turn."""
        (phase,) = self.phases(members, num_elements)
        return (phase,) if part == "all" else (replace(phase, rounds=phase.rounds // 2),)


def find_ring(members: Members, num_elements: int) -> list[int]:
    """Members in the order of the ring: the best of a few chains of nearest neighbours."""
    hop_s_MM = members.message_s_MM(-(-num_elements // len(members)))
    wire_s_MM = hop_s_MM - members.latency_s_MM
    chains = [_nearest_chain(hop_s_MM, start) for start in range(min(len(members), MOST_STARTS))]
    return min(chains, key=lambda chain: _turns_s(chain, hop_s_MM, wire_s_MM))


def _nearest_chain(hop_s_MM: FloatArray, start: int) -> list[int]:
    seconds = hop_s_MM.copy()
    seconds[:, start] = np.inf
    chain = [start]
    while len(chain) < len(seconds):
        chain.append(int(np.argmin(seconds[chain[-1]])))
        seconds[:, chain[-1]] = np.inf
    return chain


def _turns_s(chain: list[int], hop_s_MM: FloatArray, wire_s_MM: FloatArray) -> float:
    """About what the ring takes: a chunk's way round twice, or every round through the slowest wire."""
    follower = chain[1:] + chain[:1]
    return max(2.0 * float(hop_s_MM[chain, follower].sum()), 2.0 * len(chain) * float(wire_s_MM[chain, follower].max()))
