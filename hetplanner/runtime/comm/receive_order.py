"""The order in which a rank posts its receives: every peer's messages in the order in which that peer sends them.

On a communicator without tags nothing else matches; with tags it does no harm. Likewise from the schedule: when a
message has certainly arrived. No torch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from hetplanner.plan.action import Action, Kind, Schedule
from hetplanner.plan.reducers.groups import ReductionGroup
from hetplanner.runtime.comm.transport import Expected, MessageKey, Topic

TOPIC = {"activation": Topic.ACTIVATION, "gradient": Topic.GRADIENT}


def message_index(action: Action, num_micro_batches: int) -> int:
    """Tells a SEND's or RECV's message from all others of its topic between two ranks."""
    return action.micro_batch + num_micro_batches * action.stage


def sent_messages(
    actions: Iterable[Action], groups: Sequence[ReductionGroup], num_micro_batches: int
) -> dict[tuple[int, int], list[MessageKey]]:
    """What goes from rank to rank between stages and in reductions, in order, as the receiver knows it.

    Args:
        actions: of all ranks; each rank's own in order.
        groups: the plan's reduction groups.
        num_micro_batches: of a step.
    """
    sent: dict[tuple[int, int], list[MessageKey]] = defaultdict(list)
    for action in actions:
        if action.kind is Kind.SEND:
            key = (action.rank, TOPIC[action.role], message_index(action, num_micro_batches))
            sent[action.rank, action.peer].append(key)
        elif action.kind is Kind.REDUCE:
            for part in groups[action.group].rounds_of(action.rank):
                for m in part.sends:
                    if m.peer != action.rank:
                        index = action.group + len(groups) * m.ordinal
                        sent[action.rank, m.peer].append((action.rank, Topic.REDUCE, index))
    return sent


def receive_order(taken: Sequence[Expected], sent_to_me: Callable[[int], Sequence[MessageKey]]) -> list[Expected]:
    """The messages in posting order.

    Args:
        taken: in the order in which the rank takes them.
        sent_to_me: a peer's messages in its order; it may name others as well.
    """
    waiting = {(m.peer, m.topic, m.index): m for m in taken}
    rows = {peer: iter([key for key in sent_to_me(peer) if key in waiting]) for peer in {m.peer for m in taken}}
    order: list[Expected] = []
    for message in taken:
        own_key = (message.peer, message.topic, message.index)
        while own_key in waiting:
            # A message that its sender's list does not name comes in the order of taking.
            order.append(waiting.pop(next(rows[message.peer], own_key)))
    return order


def proofs_of_delivery(schedule: Schedule, rank: int, num_micro_batches: int) -> dict[MessageKey, list[MessageKey]]:
    """Which of a rank's messages have certainly arrived once it takes one from the same peer.

    What the peer took before it sent is delivered. So a rank keeps no more buffers than the plan has micro-batches
    in flight, however many the step has.
    """
    proofs: dict[MessageKey, list[MessageKey]] = {}
    taken: dict[int, list[MessageKey]] = {}
    for action in schedule.actions:
        if action.peer != rank:
            continue
        key = (action.rank, TOPIC[action.role], message_index(action, num_micro_batches))
        if action.kind is Kind.RECV:
            taken.setdefault(action.rank, []).append(key)
        else:
            proofs[key] = taken.pop(action.rank, [])
    return proofs
