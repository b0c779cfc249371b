"""Adding up gradients over a group of ranks: a sharded parameter server over the (emulated) transport.

Every member sends shard k of its bucket to member k, which adds the contributions in member order and sends the
sum back. The order is fixed, so the result does not depend on who is fast; the owner of a shard uses what it sends
(decoded), so all members end with the same bits even when the codec loses some.
"""

from collections.abc import Iterator

from torch import Tensor

from hetplanner.codecs.torch_codecs import tensor_codec
from hetplanner.runtime.transport import Expected, Topic, Transport
from hetplanner.schedule.reduction import ReductionGroup


class GroupReducer:
    """One rank's part in one group.

    Args:
        group: its members, shards and codec.
        index: of the group in the plan.
        rank: this rank.
        bucket: the slice of the flat gradient that the group shares, float32, 1-D; reduced in place.
    """

    def __init__(self, group: ReductionGroup, index: int, rank: int, bucket: Tensor, transport: Transport) -> None:
        assert bucket.numel() == group.num_elements, (group.name, bucket.numel(), group.num_elements)
        self.group, self.index, self.transport = group, index, transport
        self.codec = tensor_codec(group.codec)
        self.me, size = group.ranks.index(rank), len(group.ranks)
        # Starting with the next member spreads the load: no two members send to the same one first.
        self.others = [(self.me + k) % size for k in range(1, size)]
        self.shards = [bucket[first:end] for first, end in group.shard_bounds()]

    def expected(self) -> Iterator[Expected]:
        """The messages this rank will take, in order."""
        members = sorted(self.others)
        for member in members:
            yield Expected(self.group.ranks[member], Topic.PART, self.index, self.group.shard_bytes(self.me))
        for member in members:
            yield Expected(self.group.ranks[member], Topic.SUM, self.index, self.group.shard_bytes(member))

    def reduce(self) -> int:
        """Replaces the bucket by the sum over all members. Returns the bytes this rank has sent."""
        sent = sum(self._send(self.group.ranks[j], Topic.PART, self._encoded(self.shards[j])) for j in self.others)
        mine = self.shards[self.me]
        parts = {self.group.ranks.index(m.peer): m for m in self.expected() if m.topic is Topic.PART}
        own = mine.clone() if self.me else mine
        for member in range(len(self.group.ranks)):
            part = own if member == self.me else self._decoded(parts[member], mine.numel())
            if member == 0:
                mine.copy_(part)
            else:
                mine.add_(part)
        total = self._encoded(mine)
        for j in self.others:
            # Every transfer has its own arrival stamp, so every message its own buffer.
            sent += self._send(self.group.ranks[j], Topic.SUM, total.clone())
        mine.copy_(self.codec.decode(self.transport.payload(total), mine.numel()))
        for message in self.expected():
            if message.topic is Topic.SUM:
                shard = self.shards[self.group.ranks.index(message.peer)]
                shard.copy_(self._decoded(message, shard.numel()))
        return sent

    def rehearse(self) -> None:
        """The computing that `reduce` does, on scratch memory and without the network (for the profile)."""
        mine = self.shards[self.me].clone()
        part = self._encoded(mine)
        for j in self.others:
            self._encoded(self.shards[j])
            mine.add_(self.codec.decode(self.transport.payload(part), mine.numel()))
        total = self._encoded(mine)
        for _ in self.others:
            total.clone()
        for _ in range(len(self.others) + 1):
            mine.copy_(self.codec.decode(self.transport.payload(total), mine.numel()))

    def _encoded(self, shard: Tensor) -> Tensor:
        message = self.transport.buffer(self.group.codec.wire_bytes(shard.numel(), 4))
        self.codec.encode(shard, self.transport.payload(message))
        return message

    def _send(self, peer: int, topic: Topic, message: Tensor) -> int:
        self.transport.send(message, peer, topic, self.index)
        return self.transport.payload(message).numel()

    def _decoded(self, message: Expected, num_elements: int) -> Tensor:
        return self.codec.decode(self.transport.receive(message), num_elements)
