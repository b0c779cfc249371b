"""An elastic plan's speeds, loads and times by the cost model.

    load of a stage       its seconds over the whole model's, averaged over the peers of the start
    speed of a peer       1 / its seconds for the whole model: as if it were as much faster in one stage as in another
    download              float32 weights and optimizer states (AdamW: 12 bytes a weight) of the largest stage
                          over the median link
    overhead              (steady-state step / micro-batches) - 1 / (capacity of the weakest stage)

Legend of array suffixes: P peers of the start, S stages.
"""

from __future__ import annotations

import numpy as np

from hetplanner.cost.elastic.steady_state import stage_seconds, steady_state_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.cost.tables import CostTables
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.elastic.swarm_costs import SwarmCosts


def cost_swarm(plan: ElasticPlan, model: CostModel | None = None) -> SwarmCosts:
    """What the rebalancer's simulation needs of a plan.

    Args:
        plan: the plan; without an estimate its steady-state step is estimated.
        model: cost model of its problem, if already at hand.
    """
    model = model or CostModel.of(plan.problem)
    rows_P = np.array([plan.problem.cluster.device_index(peer) for peer in plan.peers])
    seconds_PS = stage_seconds(plan, model.tables, rows_P)
    whole_P = seconds_PS.sum(axis=1)
    load_S = (seconds_PS / whole_P[:, None]).mean(axis=0)
    stage_P = np.array([plan.stage_of_peer[peer] for peer in plan.peers])
    capacity = float((np.bincount(stage_P, weights=1.0 / whole_P) / load_S).min())
    steady = plan.estimate or estimate_plan(steady_state_plan(plan, model), model=model)
    return SwarmCosts(
        load_S=tuple(float(load) for load in load_S),
        speed={peer: float(1.0 / s) for peer, s in zip(plan.peers, whole_P, strict=True)},
        download_s=_download_seconds(plan, model, rows_P),
        steady_tokens_per_s=steady.tokens_per_s,
        tokens=plan.problem.workload.tokens_per_step / plan.num_micro_batches,
        overhead_s=max(0.0, steady.step_s / plan.num_micro_batches - 1.0 / capacity),
    )


def expected_speeds(plan: ElasticPlan) -> dict[str, tuple[float, ...]]:
    """Micro-batches per second of every peer of the start, in every stage, as the cost model has them."""
    rows_P = np.array([plan.problem.cluster.device_index(peer) for peer in plan.peers])
    speed_PS = 1.0 / np.maximum(1e-6, stage_seconds(plan, CostTables(plan.problem), rows_P))
    return {peer: tuple(map(float, speeds)) for peer, speeds in zip(plan.peers, speed_PS, strict=True)}


def group_names(plan: ElasticPlan) -> dict[str, str]:
    """Of peers that are groups, by first device: 'h0-0(×4)', as plans name them."""
    problem = plan.problem
    return {peer: problem.worker_name(peer) for peer in plan.peers if problem.degree_of(peer) > 1}


def _download_seconds(plan: ElasticPlan, model: CostModel, rows_P: np.ndarray) -> float:
    if len(rows_P) < 2:
        return 0.0
    most = max(model.tables.sent_state_bytes(stage.first_op, stage.end_op) for stage in plan.stages)
    one, two = (index.ravel() for index in np.meshgrid(rows_P, rows_P))
    apart = one != two
    per_byte = model.links.seconds_per_byte(one[apart], two[apart])
    return float(most * np.median(per_byte))
