"""What a reducer is made of: members with the network between them, transfers in rounds, phases for the closed form.

Shape legend: M members of a group, F flows of a phase.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cluster.model import NO_LINK_S, Cluster
from hetplanner.plan.reducers.names import ReducerName

ELEMENT_BYTES = 4
"""Gradients travel in float32 where no codec shortens them."""

POSTED_REDUCTIONS = 4
"""Messages of reductions that a rank awaits at once, each with a buffer of its own."""

Part = Literal["all", "reduce-scatter", "all-gather"]
"""Of a program: all of it; the transfers that reduce every range at some member; those that copy it to all."""

Effect = Literal["add", "exchange", "copy"]
"""What a transfer does, besides moving a range as its codec writes it.

add: the receiver adds the range to its own; the sender's is spent.
exchange: likewise, but the sender keeps its range, as the codec has rounded it; two members that exchange end alike.
copy: the receiver's range is replaced by the sender's. The first copy of a range rounds it at the sender as well;
    a member that has taken it passes on the very bytes. So all members end with the same bits, also with a lossy codec.
"""


class Transfer(NamedTuple):
    """Elements `first` to `end` (exclusive) of the bucket from one member to another, in one round.

    A copy from a member to itself moves nothing: it rounds the range as copies elsewhere are rounded.
    """

    round: int
    sender: int
    receiver: int
    first: int
    end: int
    effect: Effect


@dataclass(frozen=True, eq=False)
class Members:
    """Where the members of a group are and what joins them. Equal where all of it is.

    Attributes:
        site_M, host_M: index of each member's site and host.
        latency_s_MM, seconds_per_byte_MM: links from row to column.
        nic_out_s_per_byte_M, nic_in_s_per_byte_M: of each member's host; 0 where there is no limit.
    """

    site_M: IntArray
    host_M: IntArray
    latency_s_MM: FloatArray
    seconds_per_byte_MM: FloatArray
    nic_out_s_per_byte_M: FloatArray
    nic_in_s_per_byte_M: FloatArray

    @staticmethod
    def of(cluster: Cluster, device_ids: Iterable[str]) -> "Members":
        """The members on these devices."""
        rows = np.array([cluster.device_index(d) for d in device_ids])
        grid, host_M = np.ix_(rows, rows), cluster.host_index_D[rows]
        hosts = [cluster.hosts[h] for h in host_M]
        return Members(
            site_M=cluster.site_index_D[rows],
            host_M=host_M,
            # Where there is no link the slowest that a link may be stands for it, so that sums stay finite.
            latency_s_MM=np.minimum(cluster.latency_s_DD[grid], NO_LINK_S),
            seconds_per_byte_MM=1.0 / np.maximum(cluster.bandwidth_bytes_per_s_DD[grid], 1.0),
            nic_out_s_per_byte_M=np.array([1.0 / h.nic_out if h.nic_out else 0.0 for h in hosts]),
            nic_in_s_per_byte_M=np.array([1.0 / h.nic_in if h.nic_in else 0.0 for h in hosts]),
        )

    def __len__(self) -> int:
        return len(self.site_M)

    @cached_property
    def _bytes(self) -> tuple[bytes, ...]:
        return tuple(getattr(self, part.name).tobytes() for part in fields(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Members) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def message_s_MM(self, num_elements: int) -> FloatArray:
        """Seconds of a dense message between two members; 0 on the diagonal."""
        between_MM = self.host_M[:, None] != self.host_M[None, :]
        nic_MM = np.maximum(self.nic_out_s_per_byte_M[:, None], self.nic_in_s_per_byte_M[None, :])
        rate_MM = np.maximum(self.seconds_per_byte_MM, np.where(between_MM, nic_MM, 0.0))
        seconds = self.latency_s_MM + num_elements * ELEMENT_BYTES * rate_MM
        np.fill_diagonal(seconds, 0.0)
        return np.asarray(seconds, dtype=np.float64)

    def by_site(self) -> list[list[int]]:
        """Members of every site, sites in the order of their first member."""
        sites: dict[int, list[int]] = {}
        for member, site in enumerate(self.site_M.tolist()):
            sites.setdefault(site, []).append(member)
        return list(sites.values())


@dataclass(frozen=True)
class Phase:
    """Messages that travel at once, for the closed form.

    Attributes:
        sender_F, receiver_F: members; every pair once.
        count_F: messages of a pair, one behind the other.
        num_elements: of the largest message.
        rounds: how often the same flows run; a member sends again when it has taken what the round brought it.
    """

    sender_F: IntArray
    receiver_F: IntArray
    count_F: IntArray
    num_elements: int
    rounds: int = 1

    @staticmethod
    def of(pairs: Iterable[tuple[int, int]] | IntArray, num_elements: int, rounds: int = 1) -> "Phase":
        """A phase of messages of one size between (sender, receiver) pairs, which may repeat; in their order."""
        table = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs), dtype=np.int64).reshape(-1, 2)
        sender_M, receiver_M = table.T
        key_M = sender_M * (int(table.max(initial=0)) + 1) + receiver_M
        _, first, count = np.unique(key_M, return_index=True, return_counts=True)
        order = np.argsort(first)
        first = first[order]
        return Phase(sender_M[first], receiver_M[first], count[order], num_elements, rounds)


class Reducer(ABC):
    """One way to reduce. `make_program` and `phases` describe the same transfers, exactly and in sum.

    `is_even`: every member adds up as much as every other, the size of the bucket in all.
    """

    name: ClassVar[ReducerName]
    is_even: ClassVar[bool] = True

    def make_program(self, members: Members, num_elements: int) -> tuple[Transfer, ...]:
        """All transfers that carry something, by round; a program leaves every member with the whole sum."""
        return tuple(t for t in self.transfers(members, num_elements) if t.end > t.first)

    @abstractmethod
    def transfers(self, members: Members, num_elements: int) -> Iterator[Transfer]:
        """The transfers by round; where there are fewer elements than shards, some are empty."""

    @abstractmethod
    def phases(self, members: Members, num_elements: int) -> tuple[Phase, ...]:
        """The same in sum. Groups of one plan run their phases side by side: equal places mean the same time."""

    def phases_of(self, part: Part, members: Members, num_elements: int) -> tuple[Phase, ...]:
        """The phases of a part of the program: each is half of them."""
        phases = self.phases(members, num_elements)
        if part == "all":
            return phases
        middle = len(phases) // 2
        return phases[:middle] if part == "reduce-scatter" else phases[middle:]

    def largest_shard(self, members: Members) -> float:
        """Of the bucket, the share that is reduced at the member with the largest shard."""
        return 1.0 / len(members)

    def work_M(self, members: Members, num_elements: int) -> FloatArray:
        """Elements that each member adds up or packs as a finished sum, as a share of the bucket."""
        return np.ones(len(members))


def cut_range(first: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Consecutive ranges that cover `first` to `end`; sizes differ by at most one."""
    edges = [first + i * (end - first) // parts for i in range(parts + 1)]
    return [(edges[i], edges[i + 1]) for i in range(parts)]
