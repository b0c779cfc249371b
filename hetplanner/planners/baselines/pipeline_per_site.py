"""The baseline that knows the sites: every pipeline inside one site, as far as the sites' sizes allow."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.links import LinkTable
from hetplanner.plan.problem import Problem
from hetplanner.planners.baselines.rank_order import RankOrderPlanner


class PipelinePerSitePlanner(RankOrderPlanner):
    """Each site forms as many whole pipelines as it can; what is left over forms pipelines of near sites."""

    name: ClassVar[str] = "pipeline-per-site"
    is_baseline: ClassVar[bool] = True
    summary: ClassVar[str] = "baseline: pipelines inside sites, gradients between them; equal layers"

    def place(self, problem: Problem, shape: tuple[int, int]) -> IntArray:
        """Device index by stage and replica."""
        stages, replicas = shape
        pipelines, left = _whole_pipelines(problem, stages)
        pipelines = pipelines[:replicas]
        left = _chain(left, LinkTable.of(problem.cluster)) if len(pipelines) < replicas else []
        spare = iter(left)
        pipelines += [[next(spare) for _ in range(stages)] for _ in range(replicas - len(pipelines))]
        return np.array(pipelines, dtype=np.int64).T


def _whole_pipelines(problem: Problem, stages: int) -> tuple[list[list[int]], list[int]]:
    """Pipelines that fit into one site, dealt site by site in turn, and the devices of none."""
    site_D = problem.cluster.site_index_D
    members: dict[int, list[int]] = {}
    for device_id in problem.usable_devices:
        device = problem.cluster.device_index(device_id)
        members.setdefault(int(site_D[device]), []).append(device)
    pipelines: list[list[int]] = []
    while any(len(site) >= stages for site in members.values()):
        for site in members.values():
            if len(site) >= stages:
                pipelines.append(site[:stages])
                del site[:stages]
    return pipelines, [device for site in members.values() for device in site]


def _chain(devices: list[int], links: LinkTable) -> list[int]:
    """Devices as a walk that always goes to the nearest one left (by seconds of a megabyte both ways)."""
    if not devices:
        return []
    # Of equally near ones the first in file order: sorted, it is the one that argmin finds.
    left, walk = np.array(sorted(devices[1:]), dtype=np.int64), devices[:1]
    while len(left):
        last = np.array([walk[-1]])
        seconds = _both_ways(links, last, left)
        nearest = int(np.argmin(seconds))
        walk.append(int(left[nearest]))
        left = np.delete(left, nearest)
    return walk


def _both_ways(links: LinkTable, one: IntArray, others: IntArray) -> FloatArray:
    """Seconds of a megabyte there, and back."""
    there = links.latency_s(one, others) + 1e6 * links.seconds_per_byte(one, others)
    return there + (links.latency_s(others, one) + 1e6 * links.seconds_per_byte(others, one))
