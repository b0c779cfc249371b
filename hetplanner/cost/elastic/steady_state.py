"""A steady-state step of an elastic plan as a static plan: all peers of the start are there, wired as peers would wire.

Estimate, simulator and plots know static plans; this one is what they show of an elastic plan. Every sender deals its
micro-batches over the next stage's peers by interleaved weighted round robin at their true speeds, from random phases.
So links carry what stochastic wiring puts on them, not what a planner would choose.

Legend of array suffixes: D devices of the cluster, P peers, S stages.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from hetplanner.cost.estimate import CostModel
from hetplanner.cost.tables import CostTables
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.model import LinkCodec, Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.names import ReducerName

Path = tuple[int, ...]
"""Of a micro-batch: the peer of every stage."""

MOST_PATHS = 256
"""Longer steps are wired in so many equal portions: estimates take time in proportion to their routes."""


def steady_state_plan(plan: ElasticPlan, model: CostModel | None = None, seed: int = 0) -> Plan:
    """The static plan that a swarm without faults carries out in one step.

    Peers that a step's few micro-batches do not reach are left out.

    Args:
        plan: the elastic plan.
        model: cost model of its problem, if already at hand.
        seed: of the wiring's phases.
    """
    tables = model.tables if model else CostTables(plan.problem)
    counts = wire_step(plan, tables, np.random.default_rng(seed))
    used = [sorted({path[s] for path in counts}) for s in range(len(plan.stages))]
    routes = tuple(
        Route(replicas=tuple(used[s].index(peer) for s, peer in enumerate(path)), micro_batches=count)
        for path, count in counts.items()
    )
    most = plan.wiring.trainers * plan.wiring.slots
    stages = tuple(
        Stage(
            first_op=stage.first_op,
            end_op=stage.end_op,
            replicas=tuple((stage.peers[p],) for p in peers),
            in_flight=min(stage.in_flight, most),
            recompute=stage.recompute,
            reduce_codec=plan.averaging_codec,
        )
        for stage, peers in zip(plan.stages, used, strict=True)
    )
    return Plan(
        problem=plan.problem,
        stages=stages,
        routes=routes,
        link_codecs=_link_codecs(plan, counts),
        reducer=_reducer(plan.problem),
        local_steps=plan.local_steps,
        outer=plan.outer,
        ranks=tuple(replica[0] for stage in stages for replica in stage.replicas),
        estimate=plan.estimate,
        provenance=plan.provenance,
    )


def wire_step(plan: ElasticPlan, tables: CostTables, rng: np.random.Generator) -> Counter[Path]:
    """Micro-batches of a step by path: each sender has its own round robin over the next stage's peers.

    Source: Ryabinin et al. 2023 (SWARM), public code; as in `hetplanner.elastic.peer.wiring`, with speeds known.
    """
    index = plan.problem.cluster.device_index
    seconds = [
        stage_seconds(plan, tables, np.array([index(peer) for peer in stage.peers]))[:, s]
        for s, stage in enumerate(plan.stages)
    ]
    lanes: dict[tuple[int, int], np.ndarray] = {}
    total, portions = plan.num_micro_batches, min(plan.num_micro_batches, MOST_PATHS)
    counts: Counter[Path] = Counter()
    for i in range(portions):
        path: list[int] = []
        for s, seconds_P in enumerate(seconds):
            sender = (s, path[-1] if path else 0)
            if sender not in lanes:
                lanes[sender] = rng.random(len(seconds_P)) * seconds_P
            peer = int(np.argmin(lanes[sender]))
            lanes[sender][peer] += seconds_P[peer]
            path.append(peer)
        counts[tuple(path)] += (i + 1) * total // portions - i * total // portions
    return counts


def stage_seconds(plan: ElasticPlan, tables: CostTables, rows_P: np.ndarray) -> np.ndarray:
    """Seconds that devices (rows of the cluster) compute for a micro-batch in every stage, forward and backward."""
    class_P = tables.devices.class_D[rows_P][:, None]
    first_S = np.array([stage.first_op for stage in plan.stages])
    end_S = np.array([stage.end_op for stage in plan.stages])
    forward_PS, backward_PS = (
        table[class_P, end_S] - table[class_P, first_S] for table in (tables.forward_s_CO, tables.backward_s_CO)
    )
    again_S = np.array([2.0 if stage.recompute else 1.0 for stage in plan.stages])
    found: np.ndarray = forward_PS * again_S + backward_PS
    return found


def _link_codecs(plan: ElasticPlan, counts: Counter[Path]) -> tuple[LinkCodec, ...]:
    """The codecs of the links that the step uses, both ways; links that carry dense tensors need none."""
    pairs = {
        (plan.stages[s].peers[path[s]], plan.stages[s + 1].peers[path[s + 1]])
        for path in counts
        for s in range(len(path) - 1)
    }
    rules = []
    for one, two in sorted(pairs):
        there, back = plan.codec_between(one, two, "activation"), plan.codec_between(two, one, "gradient")
        rules.append(LinkCodec(from_device=one, to_device=two, role="activation", codec=there))
        rules.append(LinkCodec(from_device=two, to_device=one, role="gradient", codec=back))
    return tuple(rule for rule in rules if rule.codec.is_lossy)


def _reducer(problem: Problem) -> ReducerName:
    """The all-reduce of a torch.distributed group is a ring where that is allowed."""
    return "ring" if "ring" in problem.constraints.reducers else problem.constraints.first_reducer
