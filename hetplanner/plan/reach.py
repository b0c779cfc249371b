"""Whether the links that a plan's messages need exist."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import reduction_groups


def find_gap(plan: Plan) -> str | None:
    """The first pair of devices that a plan lets talk although there is no link, in words; None if there is none."""
    cluster = plan.problem.cluster
    if not cluster.has_gaps:
        return None
    index = [cluster.device_index(device) for device in plan.ranks]
    for one, two, why in _talks(plan):
        if not cluster.joined_DD[index[one], index[two]]:
            a, b = plan.ranks[one], plan.ranks[two]
            return f"no link between {a} ({cluster.site_of(a).name}) and {b} ({cluster.site_of(b).name}) for {why}"
    return None


def find_elastic_gap(plan: ElasticPlan) -> str | None:
    """The first two peers of a swarm's start that may have to talk without a link, in words; None if there are none.

    Wiring may choose any peer of the next stage, and averaging and downloads join any two of the same.
    """
    cluster = plan.problem.cluster
    if not cluster.has_gaps:
        return None
    rows_S = [[cluster.device_index(peer) for peer in stage.peers] for stage in plan.stages]
    joined_DD = cluster.joined_DD & cluster.joined_DD.T
    for s, rows in enumerate(rows_S):
        for t, others in list(enumerate(rows_S))[s : s + 2]:
            apart = np.argwhere(~joined_DD[np.ix_(rows, others)] & (np.array(rows)[:, None] != np.array(others)))
            if len(apart):
                a, b = plan.stages[s].peers[apart[0][0]], plan.stages[t].peers[apart[0][1]]
                why = f"wiring from stage {s} to {t}" if s < t else f"averaging in stage {s}"
                return f"no link between {a} ({cluster.site_of(a).name}) and {b} ({cluster.site_of(b).name}) for {why}"
    return None


def _talks(plan: Plan) -> Iterator[tuple[int, int, str]]:
    """Pairs of ranks that send each other messages, and what for."""
    for r, route in enumerate(plan.routes):
        path = [plan.rank_at(s, replica) for s, replica in enumerate(route.replicas)]
        for s, (one, two) in enumerate(pairwise(path)):
            yield one, two, f"route {r} from stage {s} to {s + 1}"
    for group in reduction_groups(plan):
        for phase in group.phases:
            for a, b in zip(phase.sender_F.tolist(), phase.receiver_F.tolist(), strict=True):
                yield group.ranks[a], group.ranks[b], f"the reduction of {group.name}"
