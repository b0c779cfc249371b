"""The same devices on another schedule: GPipe, 1F1B, or interleaved, where every device serves several stages."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import Plan, Route, ScheduleName, Stage
from hetplanner.planners.layout import proportional_cut
from hetplanner.simulator.timing import simulate_step_s


def reschedule(
    plan: Plan,
    schedule: ScheduleName,
    *,
    chunks: int = 2,
    in_flight: int | None = None,
    model: CostModel | None = None,
) -> Plan:
    """A plan with the devices, routes and reducer of another, on another schedule, with its own estimate.

    Args:
        plan: a plan in which every device serves one stage.
        schedule: what to make of it.
        chunks: stages that each device serves when interleaved.
        in_flight: depth of every stage; None keeps the plan's, or when interleaved takes the best that fits.
        model: cost model of the plan's problem, if already at hand.

    Raises:
        InvalidInput: if the plan is interleaved already, or cannot be.
        Infeasible: if a device cannot hold its share.
    """
    if plan.is_interleaved:
        raise InvalidInput("the plan is interleaved already; start from one in which every device serves one stage")
    if in_flight is not None and in_flight < 1:
        raise InvalidInput(f"in_flight: must be at least 1, got {in_flight}")
    model = model or CostModel.of(plan.problem)
    if schedule == "interleaved":
        made = interleave(plan, chunks, in_flight=in_flight, model=model)
    else:
        stages = tuple(s.replace(in_flight=in_flight or s.in_flight) for s in plan.stages)
        made = plan.replace(schedule=schedule, stages=stages, estimate=None)
    check_plan(made, model.tables)
    return made.replace(estimate=estimate_plan(made, model=model))


def interleave(plan: Plan, chunks: int = 2, *, in_flight: int | None = None, model: CostModel | None = None) -> Plan:
    """Gives every device `chunks` shorter stages in place of one, going round the devices; no estimate.

    Stage k of the new plan is on the devices of stage k mod S of the old one, which keep their share of the FLOPs.
    The bubble shrinks by the number of chunks, the messages grow by it. Without `in_flight` the depths are the ones
    that the simulator finds fastest among those that fit the devices' memory.

    Raises:
        InvalidInput: if the plan has one stage, or the model too few layers.
        Infeasible: if no depth fits the devices' memory.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
    """
    num_stages, model = len(plan.stages), model or CostModel.of(plan.problem)
    if chunks < 2 or num_stages < 2:
        raise InvalidInput(f"interleaving takes at least 2 chunks a device and 2 stages, got {chunks} and {num_stages}")
    if chunks * num_stages > model.tables.most_stages:
        raise InvalidInput(
            f"interleaving: {chunks} chunks x {num_stages} stages are more than the {model.tables.most_stages} that the"
            " model can be cut into; use fewer chunks or stages"
        )
    made = _dealt(plan, chunks, model)
    if in_flight is not None:
        return _with_depths(made, [in_flight] * len(made.stages))
    return _best_depths(made, model, num_stages)


def _dealt(plan: Plan, chunks: int, model: CostModel) -> Plan:
    flops = model.tables.flops_O
    part_S = np.array([flops[stage.end_op] - flops[stage.first_op] for stage in plan.stages])
    cut = proportional_cut(model, np.tile(part_S / chunks, chunks))
    stages: list[Stage] = []
    for k, (first, end) in enumerate(pairwise(cut)):
        stages.append(plan.stages[k % len(plan.stages)].replace(first_op=first, end_op=end))
    return plan.replace(
        stages=tuple(stages),
        routes=tuple(
            Route(replicas=route.replicas * chunks, micro_batches=route.micro_batches) for route in plan.routes
        ),
        schedule="interleaved",
        estimate=None,
    )


def _with_depths(plan: Plan, depths: list[int]) -> Plan:
    return plan.replace(stages=tuple(s.replace(in_flight=d) for s, d in zip(plan.stages, depths, strict=True)))


def _best_depths(plan: Plan, model: CostModel, group: int) -> Plan:
    """The fastest simulated step among depths that fit memory, the shallowest of equals."""
    best, best_s, refused = None, np.inf, None
    for depths in _depth_choices(plan, group):
        trial = _with_depths(plan, depths)
        try:
            check_plan(trial, model.tables)
        except Infeasible as error:
            refused = refused or error
            continue
        step_s = simulate_step_s(trial, model)
        if step_s < best_s * (1 - 1e-6):
            best, best_s = trial, step_s
    if best is None:
        assert refused is not None
        raise refused
    return best


def _depth_choices(plan: Plan, group: int) -> list[list[int]]:
    """Depths by stage: one each; a group (see `hetplanner.schedule.order`) and more towards the first; everything.

    Groups as large as a pipeline has devices, with as many micro-batches more at the early stages as come before the
    first backward, fill a pipeline without a network; larger ones hide round trips.
    """
    num_stages, most = len(plan.stages), max(route.micro_batches for route in plan.routes)
    shapes = [(size, extra) for size in (group, 2 * group, 4 * group, 8 * group) for extra in (0, group, num_stages)]
    choices = [[1] * num_stages]
    choices += [[min(most, size + min(extra, num_stages - 1 - k)) for k in range(num_stages)] for size, extra in shapes]
    choices.append([most] * num_stages)
    return sorted({tuple(c): c for c in choices}.values(), key=sum)
