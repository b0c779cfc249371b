"""Hierarchical: add up inside every site, exchange between sites, distribute inside.

The bucket is cut into as many shards as the largest site has members. In every site a shard has an owner, which adds
up the site's parts. Owners of one shard then reduce between the sites: two sites exchange their sums, more cut the
shard once more and act as a sharded parameter server. So each site sends the bucket out once (two sites) or at most
twice, however many members it has. In a single site it is the sharded parameter server.
Source: Cho et al., MLSys 2019 (BlueConnect); shards over unequal sites are ours.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import permutations

import numpy as np

from hetplanner.plan.reducers.program import FloatArray, IntArray, Members, Phase, Reducer, Transfer, cut_range
from hetplanner.plan.reducers.sharded_ps import ShardedServer


class Hierarchical(Reducer):
    """See the module."""

    is_even = False
    name = "hierarchical"

    def transfers(self, members: Members, num_elements: int) -> Iterator[Transfer]:
        """Rounds: inside, between (one round for two sites, else two), inside."""
        layout = _Layout(members)
        if len(layout.sites) == 1:
            yield from ShardedServer().transfers(members, num_elements)
            return
        shards = cut_range(0, num_elements, layout.num_shards)
        for j, member, owner in layout.inside():
            yield Transfer(0, member, owner, *shards[j], "add")
        if len(layout.sites) == 2:
            yield from _exchange(layout, shards)
        else:
            yield from _serve(layout, shards)

    def phases(self, members: Members, num_elements: int) -> tuple[Phase, ...]:
        """Four phases, some of them empty: inside, between, between, inside."""
        layout = _Layout(members)
        nothing = Phase.of((), 0)
        if len(layout.sites) == 1:
            inside, back = ShardedServer().phases(members, num_elements)
            return inside, nothing, nothing, back
        parts = 1 if len(layout.sites) == 2 else len(layout.sites)
        shard = -(-num_elements // layout.num_shards)
        part = -(-shard // parts)
        inside = Phase.of(layout.inside_rows[:, 1:], shard)
        back = Phase(inside.receiver_F, inside.sender_F, inside.count_F * parts, part)
        between = Phase.of(layout.between, part)
        return inside, between, nothing if parts == 1 else between, back

    def largest_shard(self, members: Members) -> float:
        """That of a member of the smallest site; of two sites each reduces everything."""
        layout = _Layout(members)
        if len(layout.sites) == 1:
            return 1.0 / len(members)
        owned = -(-layout.num_shards // min(len(site) for site in layout.sites))
        return owned / layout.num_shards / (1 if len(layout.sites) == 2 else len(layout.sites))

    def work_M(self, members: Members, num_elements: int) -> FloatArray:
        """Owners add up their site's parts; of two sites both add the other's sum."""
        layout = _Layout(members)
        work = np.zeros(len(members))
        extra = 1 if len(layout.sites) == 2 else 0
        for owners in layout.owners:
            for site, owner in zip(layout.sites, owners, strict=True):
                work[owner] += (len(site) + extra) / layout.num_shards
        return work


class _Layout:
    """The member that owns each shard, by site."""

    def __init__(self, members: Members) -> None:
        self.sites = members.by_site()
        self.num_shards = max(len(site) for site in self.sites)

    @cached_property
    def owners(self) -> list[list[int]]:
        """Owners of every shard, one per site; a small site's members own several."""
        return [[site[j % len(site)] for site in self.sites] for j in range(self.num_shards)]

    def inside(self) -> Iterator[tuple[int, int, int]]:
        """(shard, member, its owner in the member's site) wherever the two differ."""
        yield from map(tuple, self.inside_rows.tolist())

    @cached_property
    def inside_rows(self) -> IntArray:
        """The same as rows."""
        member_M = np.concatenate(self.sites)
        size_M = np.repeat([len(site) for site in self.sites], [len(site) for site in self.sites])
        first_M = np.repeat(np.cumsum([0, *map(len, self.sites[:-1])]), [len(site) for site in self.sites])
        place_M = np.arange(len(member_M)) - first_M
        # Each member starts behind itself, so that not all members send to one owner at once.
        shard_KM = (place_M + 1 + np.arange(self.num_shards)[:, None]) % self.num_shards
        owner_KM = member_M[first_M + shard_KM % size_M]
        rows = np.stack([shard_KM, np.broadcast_to(member_M, shard_KM.shape), owner_KM], axis=-1).reshape(-1, 3)
        return np.asarray(rows[rows[:, 1] != rows[:, 2]])

    @property
    def between(self) -> IntArray:
        """Pairs of owners of the same shard in two sites, shard by shard."""
        owner_KS = np.array(self.owners)
        one, two = np.nonzero(~np.eye(len(self.sites), dtype=bool))
        return np.stack([owner_KS[:, one], owner_KS[:, two]], axis=-1).reshape(-1, 2)


def _exchange(layout: _Layout, shards: list[tuple[int, int]]) -> Iterator[Transfer]:
    for j, (one, two) in enumerate(layout.owners):
        yield Transfer(1, one, two, *shards[j], "exchange")
        yield Transfer(1, two, one, *shards[j], "exchange")
    for j, owners in enumerate(layout.owners):
        for site, owner in zip(layout.sites, owners, strict=True):
            if len(site) == 1:  # no other member to send to, but elsewhere the shard is rounded
                yield Transfer(2, owner, owner, *shards[j], "copy")
    for j, member, owner in layout.inside():
        yield Transfer(2, owner, member, *shards[j], "copy")


def _serve(layout: _Layout, shards: list[tuple[int, int]]) -> Iterator[Transfer]:
    parts = [cut_range(*shard, len(layout.sites)) for shard in shards]
    for effect in ("add", "copy"):
        for j, owners in enumerate(layout.owners):
            for (_, one), (server, two) in permutations(enumerate(owners), 2):
                ends = (one, two) if effect == "add" else (two, one)
                yield Transfer(1 if effect == "add" else 2, *ends, *parts[j][server], effect)
    for j, member, owner in layout.inside():
        for part in parts[j]:
            yield Transfer(3, owner, member, *part, "copy")
