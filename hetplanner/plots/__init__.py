"""Plots for notebooks, each one call that returns a HoloViews or Bokeh object; `plots.live` has the page's figures.

Everything is loaded on first use: importing this package is quick.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "cluster_map": "maps",
    "allocation": "maps",
    "heatmap": "matrices",
    "allocation_grid": "matrices",
    "convergence": "searches",
    "tried": "searches",
    "ancestry": "search_replays",
    "search_replay": "search_replays",
    "write_plan_report": "search_replays",
    "comparison": "comparisons",
    "convergences": "comparisons",
    "pareto": "fronts",
    "spread": "spreads",
    "cost": "bars",
    "memory": "bars",
    "compare_traces": "bars",
    "calibration": "calibrations",
    "published": "calibrations",
    "dag": "dags",
    "write_dag": "dags",
    "gantt": "timelines",
    "link_use": "steps",
    "stage_times": "steps",
    "memory_over_time": "steps",
    "loss": "training",
    "losses": "training",
    "overlay": "training",
    "step_times": "training",
    "throughput": "training",
    "report": "reports",
    "memory_of_run": "run_figures",
    "load_of_hosts": "run_figures",
    "traffic_of_hosts": "run_figures",
    "traffic_of_run": "run_figures",
    "life_of_run": "run_figures",
    "swarm_life": "run_figures",
    "swarm_flow": "run_figures",
    "swarm_throughput": "swarms",
    "swarm_forecast": "swarms",
    "square_cube": "swarms",
    "utilisation": "swarms",
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
