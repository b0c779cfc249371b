"""Planners by name. To add one: a file with a class behind `Planner`, and a line here; the tests then cover it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hetplanner.errors import InvalidInput

if TYPE_CHECKING:  # the command line lists the names before it loads anything
    from hetplanner.planners.interface import Planner, PlannerSettings

_PLANNERS = {
    "evolution": ("hetplanner.planners.search.planner", "EvolutionPlanner"),
    "rank-order": ("hetplanner.planners.baselines.rank_order", "RankOrderPlanner"),
    "megatron": ("hetplanner.planners.baselines.megatron", "MegatronPlanner"),
    "random": ("hetplanner.planners.baselines.random_placement", "RandomPlanner"),
    "pipeline-per-site": ("hetplanner.planners.baselines.pipeline_per_site", "PipelinePerSitePlanner"),
    "opfence": ("hetplanner.planners.baselines.opfence", "OpFencePlanner"),
    "swarm": ("hetplanner.planners.baselines.swarm", "SwarmPlanner"),
    "exhaustive": ("hetplanner.planners.exhaustive.planner", "ExhaustivePlanner"),
    "gcma": ("hetplanner.planners.dtfm.gcma", "GcmaPlanner"),
    "cp-sat": ("hetplanner.planners.dtfm.cp_sat", "CpSatPlanner"),
}


def planner_names() -> tuple[str, ...]:
    """Names of all planners, the default first."""
    return tuple(_PLANNERS)


def planner_type(name: str) -> Any:
    """The class of a planner (its `settings_type` and `summary` describe it). Raises InvalidInput."""
    if name not in _PLANNERS:
        raise InvalidInput(f"planner: must be one of {', '.join(_PLANNERS)}, got {name!r:.60}")
    module, cls = _PLANNERS[name]
    return getattr(import_module(module), cls)


def make_planner(name: str, settings: PlannerSettings | dict[str, Any] | None = None) -> Planner:
    """A planner by name.

    Args:
        name: one of :func:`planner_names`.
        settings: its settings, or their fields.

    Raises:
        InvalidInput: for an unknown name, or a setting out of range.
    """
    from hetplanner.schema import checked

    cls = planner_type(name)
    planner: Planner = cls(checked(cls.settings_type, {} if settings is None else settings, f"planner {name}"))
    return planner
