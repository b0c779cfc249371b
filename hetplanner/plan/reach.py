"""Whether the links that a plan's messages need exist."""

from collections.abc import Iterator
from itertools import pairwise

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
