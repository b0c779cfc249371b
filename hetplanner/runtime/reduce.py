"""Adding up gradients over a group of ranks: performs any reducer's program over the (emulated) transport.

The program fixes who adds what in which order, so the result does not depend on who is fast. What is copied is
rounded at its origin as well and passed on byte by byte, so all members end with the same bits even when the codec
loses some. See :mod:`hetplanner.plan.reducers`.
"""

from collections.abc import Callable

from torch import Tensor

from hetplanner.codecs.torch_codecs import tensor_codec
from hetplanner.plan.reducers.groups import Message, ReductionGroup
from hetplanner.runtime.transport import Expected, Topic, Transport

Span = tuple[int, int]  # first and end element of a range


class GroupReducer:
    """One rank's part in one group.

    Attributes:
        rounds: what the rank sends and takes.
        expected: the messages it takes, in order.

    Args:
        group: its members, program and codec.
        place: index of the group, number of groups in the plan.
        rank: this rank.
        bucket: the slice of the flat gradient that the group shares, float32, 1-D; reduced in place.
    """

    def __init__(
        self, group: ReductionGroup, place: tuple[int, int], rank: int, bucket: Tensor, transport: Transport
    ) -> None:
        assert bucket.numel() == group.num_elements, (group.name, bucket.numel(), group.num_elements)
        self.group, self.place, self.rank, self.bucket, self.transport = group, place, rank, bucket, transport
        self.codec, self.rounds = tensor_codec(group.codec), group.rounds_of(rank)
        self.expected = [self._expected(m) for part in self.rounds for m in part.takes]
        # Ranges that this rank copies to others: what it sends of them first, or takes, is kept to be passed on.
        self._copied = {_range(m) for part in self.rounds for m in part.sends if m.transfer.effect == "copy"}
        self._blanks: dict[int, Tensor] = {}  # by length, for rehearsals

    def reduce(self) -> int:
        """Replaces the bucket by the sum over all members. Returns the bytes this rank has sent."""
        self._perform(self.bucket, self._post, lambda m: self.transport.receive(self._expected(m)))
        return sum(m.num_bytes for part in self.rounds for m in part.sends)

    def rehearse(self) -> None:
        """The computing that `reduce` does, on scratch memory and without the network (for the profile)."""
        self._perform(self.bucket.clone(), lambda message, buffer: None, self._blank)

    def _perform(
        self, bucket: Tensor, post: Callable[[Message, Tensor], None], take: Callable[[Message], Tensor]
    ) -> None:
        copies: dict[Span, Tensor] = {}
        for part in self.rounds:
            for message in part.sends:
                self._send(bucket, message, copies, post)
            for message in part.takes:
                self._add_or_copy(bucket, message, copies, take(message))

    def _send(
        self, bucket: Tensor, message: Message, copies: dict[Span, Tensor], post: Callable[[Message, Tensor], None]
    ) -> None:
        span, effect = _range(message), message.transfer.effect
        if effect == "copy" and span in copies:
            # Every transfer has its own arrival stamp, so every message its own buffer.
            buffer = self.transport.buffer(copies[span].numel())
            self.transport.payload(buffer).copy_(copies[span])
        else:
            values = bucket[span[0] : span[1]]
            buffer = self.transport.buffer(self.group.wire_bytes(values.numel()))
            payload = self.transport.payload(buffer)
            self.codec.encode(values, payload)
            if effect != "add" and self.group.codec.name != "none":
                values.copy_(self.codec.decode(payload, values.numel()))
            if effect == "copy":
                copies[span] = payload
        if message.peer != self.rank:
            post(message, buffer)

    def _add_or_copy(self, bucket: Tensor, message: Message, copies: dict[Span, Tensor], data: Tensor) -> None:
        span = _range(message)
        values = bucket[span[0] : span[1]]
        decoded = self.codec.decode(data, values.numel())
        if message.transfer.effect != "copy":
            values.add_(decoded)
            return
        values.copy_(decoded)
        if span in self._copied:
            copies[span] = data

    def _index(self, message: Message) -> int:
        """Tells the group's messages between two ranks apart, and those of other groups."""
        index, num_groups = self.place
        return index + num_groups * message.ordinal

    def _expected(self, message: Message) -> Expected:
        return Expected(message.peer, Topic.REDUCE, self._index(message), message.num_bytes)

    def _post(self, message: Message, buffer: Tensor) -> None:
        self.transport.send(buffer, message.peer, Topic.REDUCE, self._index(message))

    def _blank(self, message: Message) -> Tensor:
        if message.num_bytes not in self._blanks:
            self._blanks[message.num_bytes] = self.transport.payload(self.transport.buffer(message.num_bytes)).zero_()
        return self._blanks[message.num_bytes]


def _range(message: Message) -> Span:
    return message.transfer.first, message.transfer.end
