"""Who adds up which gradients: one group per stage with several replicas, one per weight tied across stages.

Sharded parameter server: the group's flat bucket is cut into one shard per member; every member sends shard k
to member k, which adds the contributions in member order and sends the sum back. The simulator times these
transfers and the executor performs them.
"""

import itertools
from dataclasses import dataclass

from hetplanner.codecs.spec import NO_CODEC, Codec
from hetplanner.plan.model import Plan


@dataclass(frozen=True, slots=True)
class ReductionGroup:
    """Gradients that several ranks share.

    Attributes:
        name: 'stage 2' or 'tied embedding'.
        ranks: members, ascending.
        num_elements: of the flat bucket.
        ops: indices of the ops whose own weights are in the bucket (for a tied group: all ops using the weight).
        tied: whether this is the group of one tied weight.
        codec: how shards travel, both ways.
    """

    name: str
    ranks: tuple[int, ...]
    num_elements: int
    ops: tuple[int, ...]
    tied: bool
    codec: Codec = NO_CODEC

    def shard_bounds(self) -> tuple[tuple[int, int], ...]:
        """Element range of every member's shard; sizes differ by at most one."""
        n, k = self.num_elements, len(self.ranks)
        edges = [i * n // k for i in range(k + 1)]
        return tuple(itertools.pairwise(edges))

    def shard_bytes(self, member: int) -> int:
        """Bytes on the wire of one message that carries the shard of a member; gradients travel in float32."""
        first, end = self.shard_bounds()[member]
        return self.codec.wire_bytes(end - first, 4)


def reduction_groups(plan: Plan) -> tuple[ReductionGroup, ...]:
    """All groups of a plan, in the order in which every rank performs them (tied weights last).

    A weight tied across stages is left out of its stages' buckets and gets a group over the replicas of
    all stages that use it; one tied inside a single stage is an ordinary weight of that stage.
    """
    graph = plan.problem.workload.graph
    stage_of_op = {op: s for s, stage in enumerate(plan.stages) for op in range(stage.first_op, stage.end_op)}
    crossing = {
        owner: members for owner, members in graph.tied_groups.items() if len({stage_of_op[op] for op in members}) > 1
    }
    groups = []
    for s, stage in enumerate(plan.stages):
        ranks = tuple(sorted(plan.rank_at(s, r) for r in range(len(stage.replicas))))
        ops = tuple(
            op
            for op in range(stage.first_op, stage.end_op)
            if graph.ops[op].num_params > 0 and graph.ops[op].tied is None
        )
        elements = sum(own_params(plan, op) for op in ops)
        if len(ranks) > 1 and elements:
            groups.append(ReductionGroup(f"stage {s}", ranks, elements, ops, False, stage.reduce_codec))
    for owner, members in crossing.items():
        stages = sorted({stage_of_op[op] for op in members})
        ranks = tuple(sorted(plan.rank_at(s, r) for s in stages for r in range(len(plan.stages[s].replicas))))
        elements = graph.ops[members[1]].num_params
        groups.append(
            ReductionGroup(f"tied {owner}", ranks, elements, members, True, plan.stages[stages[0]].reduce_codec)
        )
    return tuple(groups)


def own_params(plan: Plan, op: int) -> int:
    """Weights of an op that its stage reduces itself: without a weight that is tied across stages."""
    graph = plan.problem.workload.graph
    stage_of_op = {i: s for s, stage in enumerate(plan.stages) for i in range(stage.first_op, stage.end_op)}
    members = graph.tied_groups.get(graph.ops[op].name)
    if members is None or len({stage_of_op[i] for i in members}) == 1:
        return graph.ops[op].num_params
    return graph.ops[op].num_params - graph.ops[members[1]].num_params
