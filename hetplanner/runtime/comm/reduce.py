"""Adding up gradients over a group of ranks: performs any reducer's program over the (emulated) transport.

The program fixes who adds what in which order, so the result does not depend on which rank is fast. What is copied is
rounded at its origin as well and passed on byte by byte, so all members end with the same bits even when the codec
loses some. See :mod:`hetplanner.plan.reducers`.

With error feedback a member that encodes a range keeps what the codec has lost of it. It adds that before it encodes
the range for the same purpose again: the sender of a part, both sides of an exchange, and the member that rounds a
finished sum. So the sums over all steps lack only what is kept at the end. Where two members round the same sum (one
per site), both start from the same bits and keep the same.
Source: Seide et al. 2014 (1-bit SGD), Tang et al. 2019 (DoubleSqueeze: errors kept on both sides).
"""

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hetplanner.codecs.torch_codecs import tensor_codec
from hetplanner.errors import InvalidInput
from hetplanner.plan.reducers.groups import Message, ReductionGroup, Round
from hetplanner.plan.reducers.program import Effect
from hetplanner.runtime.comm.transport import Expected, Topic, Transport

Span = tuple[int, int]  # first and end element of a range
Lost = dict[tuple[Effect, Span], Tensor]  # by what an encoded range was for: what the codec has lost of it, float32


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
        assert bucket.numel() == sum(group.parts), (group.name, bucket.numel(), group.parts)
        self.group, self.place, self.rank, self.bucket, self.transport = group, place, rank, bucket, transport
        self.codec, self.rounds = tensor_codec(group.message_codec), group.rounds_of(rank)
        self.expected = [self._expected(m) for part in self.rounds for m in part.takes]
        # Ranges that this rank copies to others: what it sends of them first, or takes, is kept to be passed on.
        self._copied = Counter(_range(m) for part in self.rounds for m in part.sends if m.transfer.effect == "copy")
        self._lost: Lost = self._nothing_lost()
        self._blanks: dict[int, Tensor] = {}  # by length, for rehearsals

    def _nothing_lost(self) -> Lost:
        zeros = self.bucket.new_zeros
        kept = self.group.errors_kept(self.rank)
        return {(effect, (first, end)): zeros(end - first) for effect, first, end in kept}

    def state(self) -> dict[str, Tensor]:
        """What codecs have lost so far, by name: part of the training's state where errors are fed back."""
        return {_name(effect, span): lost for (effect, span), lost in self._lost.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave. Raises InvalidInput when it is another plan's."""
        mine = self.state()
        if {name: lost.shape for name, lost in mine.items()} != {name: lost.shape for name, lost in state.items()}:
            raise InvalidInput(
                f"state of {self.group.name}: has {', '.join(sorted(state)) or 'nothing'}, but this plan keeps errors"
                f" of {', '.join(sorted(mine)) or 'nothing'}; resume with the plan that was saved"
            )
        for name, lost in mine.items():
            lost.copy_(state[name])

    def rescale(self, factor: float) -> None:
        """Gradients will come multiplied by a factor, other than before: what was lost is, too."""
        for lost in self._lost.values():
            lost.mul_(factor)

    def reduce(self) -> int:
        """Replaces the bucket by the sum over all members. Returns the bytes this rank has sent."""
        self._perform(self.bucket, self._lost, self._post, lambda m: self.transport.receive(self._expected(m)))
        return sum(m.num_bytes for part in self.rounds for m in part.sends)

    def rehearse(self) -> None:
        """The computing that `reduce` does, without the network (for the profile). The gradients are used up.

        A copy of them would be as much memory again as the weights.
        """
        self._perform(self.bucket, self._nothing_lost(), lambda message, buffer: None, self._blank)
        self._blanks.clear()

    def _perform(
        self, bucket: Tensor, lost: Lost, post: Callable[[Message, Tensor], None], take: Callable[[Message], Tensor]
    ) -> None:
        copies: dict[Span, Tensor] = {}
        self._passed_on = Counter(self._copied)
        for part in self.rounds:
            self._begin_round(part)
            for message in part.sends:
                buffer = self._filled(bucket, lost, message, copies)
                if message.peer != self.rank:
                    post(message, buffer)
            for message in part.takes:
                self._add_or_copy(bucket, message, copies, take(message))

    def _begin_round(self, part: Round) -> None:
        """Called before a round's messages are made."""

    def _filled(self, bucket: Tensor, lost: Lost, message: Message, copies: dict[Span, Tensor]) -> Tensor:
        """The message's buffer, ready to be sent."""
        span, effect = _range(message), message.transfer.effect
        if effect == "copy" and span in copies:
            # Every transfer has its own arrival stamp, so every message its own buffer.
            buffer = self.transport.buffer(copies[span].numel(), Topic.REDUCE)
            self.transport.payload(buffer).copy_(copies[span])
        else:
            values = bucket[span[0] : span[1]]
            buffer = self.transport.buffer(self.group.wire_bytes(values.numel()), Topic.REDUCE)
            payload = self.transport.payload(buffer)
            self._encode(values, payload, effect, lost.get((effect, span)))
            if effect == "copy":
                copies[span] = payload
        if effect == "copy":
            self._passed_on[span] -= 1
            if not self._passed_on[span]:
                del copies[span]
        return buffer

    def _encode(self, values: Tensor, payload: Tensor, effect: Effect, lost: Tensor | None) -> None:
        """Encodes a range; what stays of it here becomes what the others get."""
        if lost is not None:
            values.add_(lost)
        self.codec.encode(values, payload)
        if not self.group.message_codec.is_lossy or (effect == "add" and lost is None):
            return
        decoded = self.codec.decode(payload, values.numel())
        if lost is not None:
            torch.sub(values, decoded, out=lost)
            # Gradients that are no numbers spoil the step, which is skipped or ends the run, but none that follows.
            lost.nan_to_num_(0.0, 0.0, 0.0)
        if effect != "add":
            values.copy_(decoded)

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
            blank = self.transport.buffer(message.num_bytes, Topic.REDUCE)
            self._blanks[message.num_bytes] = self.transport.payload(blank).zero_()
        return self._blanks[message.num_bytes]


def _range(message: Message) -> Span:
    return message.transfer.first, message.transfer.end


def _name(effect: Effect, span: Span) -> str:
    return f"{effect}.{span[0]}-{span[1]}"
