"""From SWARM's assignment to an elastic plan: depths, what may be under way, one codec for each kind of traffic.

Candidates are judged by a steady-state step (`hetplanner.cost.elastic.steady_state`): random wiring puts messages on
every link between two stages, so a plan that is best with fixed routes may be none here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from hetplanner.arrays import IntArray
from hetplanner.codecs.spec import CODEC_NAMES, Codec, CodecName
from hetplanner.cost.check import check_plan
from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.cost.elastic.swarm_rules import estimate_swarm
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.elastic.model import STATELESS_CODECS, ElasticPlan, ElasticStage
from hetplanner.plan.elastic.settings import WiringSettings
from hetplanner.planners.choices.codec import FED_BACK, NEARLY_BEST, WORTH_A_CODEC, rough_objective
from hetplanner.planners.choices.depth import replace_depth
from hetplanner.planners.layout import greatest_depth

Traffic = Literal["messages", "averaging"]


def elastic_plan(model: CostModel, members: list[IntArray], cut: tuple[int, ...], recompute: bool) -> ElasticPlan:
    """An elastic plan with codecs, estimate and what must be under way to keep its peers busy.

    Args:
        model: the cost model of the problem.
        members: rows of the cluster by stage.
        cut: op boundaries.
        recompute: whether stages keep only their inputs.

    Raises:
        Infeasible: if a peer cannot hold its stage, or two that may have to talk have no link.
    """
    problem, memory_D = model.tables.problem, model.tables.devices.memory_bytes_D
    ids = problem.cluster.device_ids
    stages = tuple(
        ElasticStage(
            first_op=first,
            end_op=end,
            peers=tuple(ids[d] for d in rows),
            in_flight=max(1, greatest_depth(model, first, end, float(memory_D[rows].min()), recompute)),
            recompute=recompute,
        )
        for (first, end), rows in zip(pairwise(cut), members, strict=True)
    )
    slots = min(problem.workload.num_micro_batches, 2 * sum(map(len, members)))
    plan = ElasticPlan(problem=problem, stages=stages, wiring=WiringSettings(slots=slots))
    plan = _with_codec(_with_codec(plan, model, "messages"), model, "averaging")
    check_plan(steady_state_plan(plan, model), model.tables)
    plan = _with_slots(plan, model)
    return plan.replace(estimate=estimate_swarm(plan, steady_state_plan(plan, model), model))


def _with_codec(plan: ElasticPlan, model: CostModel, traffic: Traffic) -> ElasticPlan:
    """The weakest allowed codec with which the objective is nearly best; dense unless one is worth it."""
    tried = [_carrying(plan, name, traffic) for name in _allowed(plan, traffic)]
    if len(tried) == 1 or model.is_hurried(sum(len(stage.peers) for stage in plan.stages)):
        return tried[0]
    values = [rough_objective(steady_state_plan(each, model), model) for each in tried]
    if min(values) > values[0] * (1 - WORTH_A_CODEC):
        return tried[0]
    return next(each for each, value in zip(tried, values, strict=True) if value <= min(values) * (1 + NEARLY_BEST))


def _allowed(plan: ElasticPlan, traffic: Traffic) -> list[CodecName]:
    """Names to try, weakest first: dense is always among them. What needs feeding back cannot be averaged by."""
    wanted = {"none", *plan.problem.constraints.codecs} & set(STATELESS_CODECS)
    return [n for n in CODEC_NAMES if n in wanted and not (traffic == "averaging" and n in FED_BACK)]


def _carrying(plan: ElasticPlan, name: CodecName, traffic: Traffic) -> ElasticPlan:
    codec = Codec(name=name, block=plan.problem.constraints.codec_block)
    if traffic == "averaging":
        return plan.replace(averaging_codec=codec)
    return plan.replace(activation_codec=codec, gradient_codec=codec)


def _with_slots(plan: ElasticPlan, model: CostModel) -> ElasticPlan:
    """As many under way as the first stage's peers need to hide round trips, at least two for every peer."""
    wide = plan.replace(wiring=plan.wiring.replace(slots=plan.num_micro_batches))
    needed = replace_depth(steady_state_plan(wide, model), model).stages[0].in_flight * len(plan.stages[0].peers)
    slots = min(plan.num_micro_batches, max(plan.wiring.slots, needed))
    return plan.replace(wiring=plan.wiring.replace(slots=slots))
