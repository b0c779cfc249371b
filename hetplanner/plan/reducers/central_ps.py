"""Central parameter server: all members send their gradients to one, which adds them up and sends the sum to all.

The centre is the member that is through first: slowest link and own NIC, there and back. It pays where the links
between the other members are bad: a star.
Source: Li et al., OSDI 2014; the choice of the centre is ours.
"""

from collections.abc import Iterator

import numpy as np

from hetplanner.plan.reducers.program import ELEMENT_BYTES, FloatArray, Members, Phase, Reducer, Transfer


class CentralServer(Reducer):
    """See the module."""

    is_even = False
    name = "central-ps"

    def transfers(self, members: Members, num_elements: int) -> Iterator[Transfer]:
        """Everything to the centre, everything back."""
        centre = find_centre(members, num_elements)
        others = [i for i in range(len(members)) if i != centre]
        for i in others:
            yield Transfer(0, i, centre, 0, num_elements, "add")
        for i in others:
            yield Transfer(1, centre, i, 0, num_elements, "copy")

    def phases(self, members: Members, num_elements: int) -> tuple[Phase, ...]:
        """The whole bucket to the centre, then back."""
        centre = find_centre(members, num_elements)
        others = [i for i in range(len(members)) if i != centre]
        there = Phase.of(((i, centre) for i in others), num_elements)
        return there, Phase.of(((centre, i) for i in others), num_elements)

    def largest_shard(self, members: Members) -> float:
        """All of it, at the centre."""
        return 1.0

    def work_M(self, members: Members, num_elements: int) -> FloatArray:
        """The centre adds up for all."""
        work = np.zeros(len(members))
        work[find_centre(members, num_elements)] = len(members)
        return work


def find_centre(members: Members, num_elements: int) -> int:
    """The member that takes and returns all members' gradients soonest; the first of equals."""
    message_s_MM = members.message_s_MM(num_elements)
    num_bytes = num_elements * ELEMENT_BYTES
    elsewhere_M = (members.host_M[:, None] != members.host_M[None, :]).sum(axis=0)
    take_s_M = np.maximum(message_s_MM.max(axis=0), elsewhere_M * num_bytes * members.nic_in_s_per_byte_M)
    give_s_M = np.maximum(message_s_MM.max(axis=1), elsewhere_M * num_bytes * members.nic_out_s_per_byte_M)
    return int(np.argmin(take_s_M + give_s_M))
