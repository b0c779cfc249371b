"""Plots for notebooks, each one call that returns a HoloViews or Bokeh object; `plots.live` has the page's figures.

Everything is loaded on first use: importing this package is quick.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "cluster_map": "plans.maps",
    "allocation": "plans.maps",
    "heatmap": "plans.matrices",
    "allocation_grid": "plans.matrices",
    "convergence": "plans.searches",
    "tried": "plans.searches",
    "ancestry": "plans.search_replays",
    "search_replay": "plans.search_replays",
    "write_plan_report": "plans.search_replays",
    "comparison": "plans.comparisons",
    "convergences": "plans.comparisons",
    "pareto": "plans.fronts",
    "spread": "steps.spreads",
    "cost": "steps.bars",
    "memory": "steps.bars",
    "compare_traces": "steps.bars",
    "calibration": "runs.calibrations",
    "published": "runs.calibrations",
    "profile": "runs.profiles",
    "collectives": "runs.profiles",
    "dag": "plans.dags",
    "write_dag": "plans.dags",
    "gantt": "steps.timelines",
    "step_gantt": "steps.steps",
    "link_use": "steps.steps",
    "stage_times": "steps.steps",
    "memory_over_time": "steps.steps",
    "loss": "runs.training",
    "losses": "runs.training",
    "overlay": "runs.training",
    "step_times": "runs.training",
    "throughput": "runs.training",
    "perplexity": "runs.training",
    "accuracy": "runs.training",
    "tokens_of_experts": "runs.training",
    "report": "runs.reports",
    "memory_of_run": "runs.run_figures",
    "load_of_hosts": "runs.run_figures",
    "traffic_of_hosts": "runs.run_figures",
    "traffic_of_run": "runs.run_figures",
    "life_of_run": "runs.run_figures",
    "swarm_life": "runs.run_figures",
    "swarm_flow": "runs.run_figures",
    "swarm_throughput": "runs.swarms",
    "swarm_forecast": "runs.swarms",
    "square_cube": "runs.swarms",
    "utilisation": "runs.swarms",
}

__all__ = ["live", *_HOMES]


def __getattr__(name: str) -> Any:
    if name == "live":
        return import_module("hetplanner.plots.live")
    if name in _HOMES:
        return getattr(import_module(f"hetplanner.plots.notebook.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hetplanner.plots' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
