"""Which ranks add up which gradients: one group per stage with several replicas, one per weight tied across stages.

Where replicas take local steps, these groups average changes of weights, in steps in which replicas synchronise. What
must stay equal in every step is then another group: the copies of a tied weight on the same pipelines.

`ReductionGroup.rounds_of` gives what a rank sends and takes; the simulator times it and the executor performs it.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple
from weakref import ref

import numpy as np

from hetplanner.arrays import IntArray
from hetplanner.codecs.spec import NO_CODEC, Codec, folded
from hetplanner.plan.model import Plan
from hetplanner.plan.parts import parts_of
from hetplanner.plan.reducers.names import ReducerName
from hetplanner.plan.reducers.program import ELEMENT_BYTES, Effect, Members, Part, Phase, Transfer, cut_range
from hetplanner.plan.reducers.registry import REDUCERS


@dataclass(frozen=True, slots=True)
class Message:
    """One transfer as one of its two ranks sees it.

    Attributes:
        peer: the other rank.
        ordinal: how many messages of the group went the same way between the two before.
        num_bytes: on the wire; 0 where nothing moves (the peer is the rank itself).
    """

    peer: int
    ordinal: int
    num_bytes: int
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Round:
    """What one rank sends, then takes."""

    sends: tuple[Message, ...]
    takes: tuple[Message, ...]

    @property
    def num_elements(self) -> int:
        """Elements that the rank packs or unpacks."""
        return sum(m.transfer.end - m.transfer.first for m in (*self.sends, *self.takes))


class ProgramTable(NamedTuple):
    """The transfers of a program, by column: for code that reads very many at once."""

    round_T: IntArray
    sender_T: IntArray
    receiver_T: IntArray
    num_elements_T: IntArray


@dataclass(frozen=True)
class ReductionGroup:
    """Gradients that several ranks share.

    Attributes:
        name: 'stage 2' or 'tied embedding'.
        stages: the one stage, or all that use the tied weight.
        ranks: members, ascending.
        members: where they are.
        num_elements: of the flat bucket.
        ops: indices of the ops whose own trained weights are in the bucket (of a tied group all ops that use the
            weight).
        reducer: how the members add up.
        codec: how every transfer travels.
        error_feedback: whether what the codec loses is kept where it is lost, and added the next time.
        every_step: whether gradients are added up in every step; if not, changes of weights where replicas synchronise.
        fragment: in which of these the group has its turn, see `Plan.fragment_at`; weights tied across stages in 0.
        first_element: of the stage's own weights, where the bucket begins.
        part: of the reducer's program. With ZeRO one group reduces and scatters gradients, another gathers weights.
    """

    name: str
    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    members: Members
    num_elements: int
    ops: tuple[int, ...]
    reducer: ReducerName
    codec: Codec = NO_CODEC
    error_feedback: bool = False
    every_step: bool = True
    fragment: int = 0
    first_element: int = 0
    part: Part = "all"

    def is_due(self, fragment: int | None) -> bool:
        """Whether it is performed in a step in which replicas average so and so (None: nothing)."""
        return self.every_step or self.fragment == fragment

    @property
    def follows_step(self) -> bool:
        """Whether it carries what the optimizer has changed, not gradients."""
        return not self.every_step or self.part == "all-gather"

    @property
    def tied(self) -> bool:
        """Whether this is the group of one tied weight."""
        return len(self.stages) > 1

    @property
    def keeps_errors(self) -> bool:
        """Whether what is lost is added the next time."""
        return self.codec.name == "powersgd" or (self.error_feedback and self.codec.is_lossy)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Elements that are reduced one after the other: the bucket, or powersgd's two factors of it."""
        return self.codec.factor_elements(self.num_elements) if self.codec.name == "powersgd" else (self.num_elements,)

    @cached_property
    def program(self) -> tuple[Transfer, ...]:
        """All transfers, by round; senders and receivers are places in `ranks`. Parts lie one behind the other."""
        transfers: list[Transfer] = []
        first = 0
        for elements in self.parts:
            rounds = transfers[-1].round + 1 if transfers else 0
            transfers += (
                Transfer(rounds + t.round, t.sender, t.receiver, first + t.first, first + t.end, t.effect)
                for t in _program(self.reducer, self.members, elements, self.part)
            )
            first += elements
        return tuple(transfers)

    @property
    def table(self) -> ProgramTable:
        """The program by column."""
        return _table(self.reducer, self.members, self.parts, self.part)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The program in sum, for the closed form."""
        return tuple(p for n in self.parts for p in REDUCERS[self.reducer].phases_of(self.part, self.members, n))

    @property
    def message_codec(self) -> Codec:
        """What is done to every message; powersgd's factors travel as they are."""
        return NO_CODEC if self.codec.name == "powersgd" else self.codec

    def wire_bytes(self, num_elements: int) -> int:
        """Bytes on the wire of one message of so many elements."""
        return self.message_codec.wire_bytes(num_elements, ELEMENT_BYTES)

    def transfer_bytes(self, transfer: Transfer) -> int:
        """Bytes on the wire of one transfer."""
        return 0 if transfer.sender == transfer.receiver else self.wire_bytes(transfer.end - transfer.first)

    def rounds_of(self, rank: int) -> tuple[Round, ...]:
        """What a member sends and takes, round by round; rounds without it are left out."""
        return _rounds_by_member(self).get(self.ranks.index(rank), ())

    def shard_of(self, rank: int) -> tuple[tuple[int, int], ...]:
        """First and end element of the ranges that are reduced at a member, ascending; the others it gathers."""
        return _shards_by_member(self.reducer, self.members, self.num_elements)[self.ranks.index(rank)]

    @cached_property
    def num_holders(self) -> int:
        """How many members have the same range in their shard: two where two sites exchange their sums."""
        shards = _shards_by_member(self.reducer, self.members, self.num_elements)
        return round(sum(end - first for shard in shards for first, end in shard) / self.num_elements)

    def errors_kept(self, rank: int) -> tuple[tuple[Effect, int, int], ...]:
        """What a member's codec encodes, whose errors it keeps: what for, first and end element of the range.

        Without powersgd's, which are kept of the whole bucket.
        """
        if not (self.error_feedback and self.message_codec.is_lossy):
            return ()
        rounds = [(part.sends, part.takes) for part in self.rounds_of(rank)]
        taken = {
            (m.transfer.first, m.transfer.end) for _, takes in rounds for m in takes if m.transfer.effect == "copy"
        }
        sent = [m.transfer for sends, _ in rounds for m in sends]
        # What was taken as a copy is passed on as it came.
        encoded = {(t.effect, t.first, t.end) for t in sent if t.effect != "copy" or (t.first, t.end) not in taken}
        return tuple(sorted(encoded))

    def elements_kept(self, rank: int) -> int:
        """Elements that a member carries from one reduction to the next: what its codec has lost, powersgd's factor."""
        if self.codec.name == "powersgd":
            return math.prod(folded(self.num_elements)) + self.parts[1]
        return sum(end - first for _, first, end in self.errors_kept(rank))


def _program(reducer: ReducerName, members: Members, num_elements: int, part: Part) -> tuple[Transfer, ...]:
    """The transfers of a part of a reducer's program, their rounds counted from 0."""
    program = REDUCERS[reducer].make_program(members, num_elements)
    if part == "all":
        return program
    kept = [t for t in program if (t.effect == "copy") == (part == "all-gather")]
    first = min((t.round for t in kept), default=0)
    return tuple(t._replace(round=t.round - first) for t in kept)


@lru_cache(maxsize=32)
def _table(reducer: ReducerName, members: Members, parts: tuple[int, ...], part: Part) -> ProgramTable:
    columns: list[list[IntArray]] = []
    rounds = 0
    for elements in parts:
        program = _program(reducer, members, elements, part)
        rows = np.array([(t.round + rounds, t.sender, t.receiver, t.end - t.first) for t in program], np.int64)
        columns.append(list(rows.reshape(-1, 4).T))
        rounds = program[-1].round + rounds + 1 if program else rounds
    return ProgramTable(*(np.concatenate(column) for column in zip(*columns, strict=True)))


@lru_cache(maxsize=128)
def _shards_by_member(
    reducer: ReducerName, members: Members, num_elements: int
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """By member, its shard: what no other member copies to it."""
    copied: list[list[tuple[int, int]]] = [[] for _ in range(len(members))]
    for t in _program(reducer, members, num_elements, "all-gather"):
        if t.sender != t.receiver:
            copied[t.receiver].append((t.first, t.end))
    shards = []
    for ranges in copied:
        edges = [0, *(edge for each in sorted(ranges) for edge in each), num_elements]
        shards.append(tuple((first, end) for first, end in zip(edges[::2], edges[1::2], strict=True) if end > first))
    return tuple(shards)


@lru_cache(maxsize=128)
def _rounds_by_member(group: ReductionGroup) -> dict[int, tuple[Round, ...]]:
    """Rounds of every place in `ranks`. Remembered, as a derived plan often differs in what is not reduced."""
    sends: dict[tuple[int, int], list[Message]] = defaultdict(list)
    takes: dict[tuple[int, int], list[Message]] = defaultdict(list)
    sent_before: dict[tuple[int, int], int] = defaultdict(int)
    sizes = {n: group.wire_bytes(n) for n in {t.end - t.first for t in group.program}}  # many messages, few sizes
    for t in group.program:
        pair = t.sender, t.receiver
        num_bytes = 0 if t.sender == t.receiver else sizes[t.end - t.first]
        ordinal, sent_before[pair] = sent_before[pair], sent_before[pair] + 1
        sends[t.sender, t.round].append(Message(group.ranks[t.receiver], ordinal, num_bytes, t))
        if t.sender != t.receiver:
            takes[t.receiver, t.round].append(Message(group.ranks[t.sender], ordinal, num_bytes, t))
    rounds: dict[int, list[Round]] = defaultdict(list)
    for member, number in sorted(sends.keys() | takes.keys()):
        rounds[member].append(Round(tuple(sends[member, number]), tuple(takes[member, number])))
    return {member: tuple(parts) for member, parts in rounds.items()}


def reduction_groups(plan: Plan) -> tuple[ReductionGroup, ...]:
    """All groups of a plan, in the order in which every rank performs them (tied weights last).

    Buckets are of trained weights. A stage of frozen weights alone has no group.
    A weight tied across stages is left out of its stages' buckets and gets a group over the replicas of
    all stages that use it; one tied inside a single stage is an ordinary weight of that stage. With ZeRO each group
    reduces and scatters gradients; behind all of them comes one for each that gathers weights. With local steps, groups
    over the copies on the same pipelines come first, whose gradients are added up in every step. Of a plan with several
    fragments each stage has a group for every one.
    """
    for known, groups in _asked_last:
        if known() is plan:
            return groups
    groups = (*(_inner_groups(plan) if plan.is_local else ()), *_stage_groups(plan), *_tied_groups(plan))
    if plan.zero:
        groups = (*(replace(group, part="reduce-scatter") for group in groups), *map(_weights_of, groups))
    _asked_last[:] = [(ref(plan, _forget), groups)]
    return groups


def sharded_elements(plan: Plan) -> list[float]:
    """By stage, how many of its weights are not in the largest shard of its ranks: none without ZeRO."""
    elsewhere = [0.0] * len(plan.stages)
    for group in reduction_groups(plan) if plan.zero else ():
        if group.part == "reduce-scatter":
            share = REDUCERS[plan.reducer].largest_shard(group.members)
            for stage in group.stages:
                elsewhere[stage] += group.num_elements * (1.0 - share)
    return elsewhere


def _weights_of(group: ReductionGroup) -> ReductionGroup:
    """The group that gathers the weights which members step with the gradients of another group."""
    return replace(group, name=f"weights of {group.name}", codec=NO_CODEC, error_feedback=False, part="all-gather")


# A plan is asked about many times in a row. Of thousands of devices the groups' matrices take too much memory to keep
# them with every plan.
_asked_last: list[tuple[ref[Plan], tuple[ReductionGroup, ...]]] = []


def _forget(plan: ref[Plan]) -> None:
    """Drops the groups of a plan that is gone."""
    _asked_last[:] = [kept for kept in _asked_last if kept[0] is not plan]


def groups_performed(plan: Plan, groups: Sequence[ReductionGroup], rank: int, count: int) -> list[int] | None:
    """Indices of a rank's groups in a step in which it had so many reductions; None if no step has as many.

    Fragments of one stage are alike: of several that would do it is the first.
    """
    own = [(g, group) for g, group in enumerate(groups) if rank in group.ranks]
    fragments = (plan.fragment_at(step) for step, _ in plan.kinds_of_step)
    kinds = ([g for g, group in own if group.is_due(fragment)] for fragment in fragments)
    return next((kind for kind in kinds if len(kind) == count), None)


def _stage_groups(plan: Plan) -> Iterator[ReductionGroup]:
    graph, elsewhere = plan.problem.workload.graph, _tied_elsewhere(plan)
    for s, stage in enumerate(plan.stages):
        if len(stage.replicas) == 1:
            continue
        ops = tuple(
            op for op in range(stage.first_op, stage.end_op) if graph.ops[op].trained > 0 and graph.ops[op].tied is None
        )
        elements = sum(graph.ops[op].trained - elsewhere.get(op, 0) for op in ops)
        for fragment, (first, end) in enumerate(cut_range(0, elements, plan.fragments)):
            if end > first:
                name = f"stage {s}" if plan.fragments == 1 else f"stage {s} fragment {fragment}"
                group = _group(plan, name, (s,), end - first, ops)
                yield replace(group, fragment=fragment, first_element=first)


def _tied_groups(plan: Plan) -> Iterator[ReductionGroup]:
    graph = plan.problem.workload.graph
    for owner, members in _crossing(plan).items():
        stages = tuple(sorted({plan.stage_of_op[op] for op in members}))
        group = _group(plan, f"tied {owner}", stages, graph.ops[members[1]].trained, members)
        # A rank that serves all these stages adds up by itself, and copies on one pipeline alone never part.
        if len(group.ranks) > 1 and not (plan.is_local and len(parts_of(plan, stages)) == 1):
            yield group


def _inner_groups(plan: Plan) -> Iterator[ReductionGroup]:
    graph = plan.problem.workload.graph
    for owner, members in _crossing(plan).items():
        stages = tuple(sorted({plan.stage_of_op[op] for op in members}))
        for part in parts_of(plan, stages):
            ranks = tuple(sorted({plan.rank_at(*place) for place in part.places}))
            if len(ranks) > 1:
                name = f"tied {owner} of ranks {', '.join(map(str, ranks))}"
                group = _group(plan, name, stages, graph.ops[members[1]].trained, members, ranks)
                yield replace(group, every_step=True)


def _group(
    plan: Plan,
    name: str,
    stages: tuple[int, ...],
    elements: int,
    ops: tuple[int, ...],
    ranks: tuple[int, ...] | None = None,
) -> ReductionGroup:
    everywhere = {plan.rank_at(s, r) for s in stages for r in range(len(plan.stages[s].replicas))}
    ranks = ranks or tuple(sorted(everywhere))
    members = Members.of(plan.problem.cluster, (plan.ranks[rank] for rank in ranks))
    first = plan.stages[stages[0]]
    return ReductionGroup(
        name=name,
        stages=stages,
        ranks=ranks,
        members=members,
        num_elements=elements,
        ops=ops,
        reducer=plan.reducer,
        codec=first.reduce_codec,
        error_feedback=first.error_feedback,
        every_step=not plan.is_local,
    )


def _crossing(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Trained weights tied across stages: the owner's name, and all ops that use it."""
    graph = plan.problem.workload.graph
    groups = ((owner, ops) for owner, ops in graph.tied_groups.items() if graph.ops[ops[1]].trained)
    return {owner: tuple(ops) for owner, ops in groups if len({plan.stage_of_op[op] for op in ops}) > 1}


def _tied_elsewhere(plan: Plan) -> dict[int, int]:
    """Of the ops that own a weight tied across stages, how many of their weights that is."""
    graph = plan.problem.workload.graph
    return {members[0]: graph.ops[members[1]].trained for members in _crossing(plan).values()}
