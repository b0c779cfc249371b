"""ZeRO stage 1: the shard of a stage's weights that a rank steps, and whose optimizer states it has.

It is what the reducer's program reduces at the rank. The other weights are gathered after the step.
Source: Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054), section 5.1.
"""

from collections.abc import Iterator

from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import ReductionGroup, reduction_groups
from hetplanner.runtime.model.layout import Weight, stage_weights
from hetplanner.runtime.train.optimizers import Range


def shard_ranges(plan: Plan, rank: int, stage: int) -> tuple[Range, ...]:
    """A rank's shard of a stage's flat buffer: ascending ranges. What no other rank has is in it."""
    weights = _weights(plan, stage)
    found: list[Range] = []
    shared_end = 0
    for group, first in sorted(_buckets(plan, rank, stage, weights), key=lambda bucket: bucket[1]):
        found += [(shared_end, first), *((first + a, first + b) for a, b in group.shard_of(rank))]
        shared_end = first + group.num_elements
    found.append((shared_end, weights[-1].end if weights else 0))
    return tuple((first, end) for first, end in found if end > first)


def counted_ranges(plan: Plan, rank: int) -> Iterator[tuple[int, int, int, float]]:
    """What of its gradients a rank counts in the norm.

    Returns:
        (stage, first and end element in its flat buffer, by how much the squares count): where several ranks add up
        the same gradients each counts its share of them.
    """
    reduced = set[int]()
    for stage, _ in plan.places_of_rank[rank]:
        weights = _weights(plan, stage)
        own_end = next((weight.first for weight in weights if weight.is_tied), weights[-1].end if weights else 0)
        is_reduced = False
        for group, first in _buckets(plan, rank, stage, weights):
            is_reduced |= not group.tied
            if group.tied and group.ops[0] in reduced:
                continue  # another stage of this rank holds it, too
            reduced |= {group.ops[0]} if group.tied else set()
            for a, b in group.shard_of(rank):
                yield stage, first + a, first + b, 1.0 / group.num_holders
        if not is_reduced:
            yield stage, 0, own_end, 1.0
    for stage, _ in plan.places_of_rank[rank]:
        ops = range(plan.stages[stage].first_op, plan.stages[stage].end_op)
        for weight in _weights(plan, stage):
            if weight.is_tied and weight.op_index in ops and weight.op_index not in reduced:
                yield stage, weight.first, weight.end, 1.0


def _weights(plan: Plan, stage: int) -> list[Weight]:
    ops = plan.stages[stage]
    return [weight for _, weight in stage_weights(plan.problem.workload, ops.first_op, ops.end_op)]


def _buckets(plan: Plan, rank: int, stage: int, weights: list[Weight]) -> Iterator[tuple[ReductionGroup, int]]:
    """The groups that reduce gradients of a rank's stage, with the first element of their bucket in its flat buffer."""
    for group in reduction_groups(plan):
        if group.part != "reduce-scatter" or stage not in group.stages or rank not in group.ranks:
            continue
        if not group.tied:
            yield group, group.first_element
        else:
            yield group, min(weight.first for weight in weights if weight.is_tied and weight.op_index == group.ops[0])
