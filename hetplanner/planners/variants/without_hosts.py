"""A plan made anew for the devices that are left when hosts are gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches

from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import ranks_by_host
from hetplanner.plan.problem import Problem
from hetplanner.planners.variants.whatif import Changes, changed_problem, evaluate_changes


def problem_without_hosts(plan: Plan, hosts: Sequence[str]) -> tuple[Problem, Plan | None]:
    """The plan's problem without some hosts, in any shape, and a plan to begin the search with.

    A run that goes on keeps its model and its batch, and takes no local steps unless it did before.

    Args:
        plan: of all hosts.
        hosts: ids of those that are gone.

    Returns:
        The problem; the plan with its places filled by the devices that are left, None where they cannot.

    Raises:
        InvalidInput: the cluster has no such host, or no device is left.
    """
    problem = plan.problem
    known = {host.id: host for host in problem.cluster.hosts}
    for name in hosts:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(list(known)[:8])}"
            raise InvalidInput(f"without: the cluster has no host {name!r:.80}; {hint}")
    gone = [d for d in problem.usable_devices if problem.cluster.host_of(d).id in hosts]
    if len(gone) == len(problem.usable_devices):
        raise InvalidInput("without: no device of the plan's cluster is left; keep a host")
    changes = Changes.of([{"do": "drop", "device": device} for device in gone])
    start = None
    with suppress(Infeasible, InvalidInput):
        start = evaluate_changes(plan, changes).plan
    changed = changed_problem(problem, changes)
    local_steps = changed.constraints.max_local_steps if plan.is_local else 1
    constraints = changed.constraints.replace(stages=None, replicas=None, max_local_steps=local_steps)
    return changed.replace(constraints=constraints), start


def plan_without_hosts(
    plan: Plan, hosts: Sequence[str], earlier: Plan | None, search: Callable[[Problem, Plan | None], Plan]
) -> Plan:
    """A plan for the devices of the other hosts, which have all weights of an earlier run.

    Args:
        plan: of all hosts.
        hosts: ids of those that are gone.
        earlier: of the run whose weights are gone on from; None: training begins anew.
        search: a plan for a problem, from a plan to begin with.

    Raises:
        InvalidInput, Infeasible: no plan is left, or the weights of a stage are gone.
    """
    problem, start = problem_without_hosts(plan, hosts)
    if earlier is not None:
        problem_with_weights(problem, earlier)  # refuses before the search what has lost a stage
    found = search(problem, start)
    if earlier is not None and stages_out_of_reach(earlier, found):
        found = search(problem_with_weights(problem, earlier), start)
    return found


def stages_out_of_reach(earlier: Plan, plan: Plan) -> list[int]:
    """Stages of an earlier run of which no host of a plan has the weights: checkpoints stay on the run's hosts."""
    hosts = set(ranks_by_host(plan))
    cluster = earlier.problem.cluster
    return [
        number
        for number, stage in enumerate(earlier.stages)
        if not any(cluster.host_of(device).id in hosts for replica in stage.replicas for device in replica)
    ]


def problem_with_weights(problem: Problem, earlier: Plan) -> Problem:
    """The problem with one device pinned to each stage of an earlier run where the weights of that stage are.

    These pins take the place of the problem's own.

    Raises:
        Infeasible: all hosts of a stage are gone, and its weights with them.
    """
    cluster, pinned = earlier.problem.cluster, {}
    for number, stage in enumerate(earlier.stages):
        devices = [device for replica in stage.replicas for device in replica]
        left = next((device for device in devices if device in problem.usable_devices), None)
        if left is None:
            hosts = ", ".join(dict.fromkeys(cluster.host_of(device).id for device in devices))
            raise Infeasible(
                f"without: stage {number} of the earlier run was on {hosts} alone, and its weights are there; wait for"
                " a host, or begin anew without --resume"
            )
        pinned[left] = number
    return problem.replace(constraints=problem.constraints.replace(stages=len(earlier.stages), pinned=pinned))
