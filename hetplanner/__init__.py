"""hetplanner: plan, rehearse and run the training of large models on unlike GPUs over slow networks.

Names are loaded on first use, so that importing the package costs nothing and planning never imports torch.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "load_cluster": "hetplanner.cluster.formats.cluster_files",
    "save_cluster": "hetplanner.cluster.formats.cluster_files",
    "Cluster": "hetplanner.cluster.model",
    "cluster_from_networkx": "hetplanner.cluster.formats.graphs",
    "cluster_to_networkx": "hetplanner.cluster.formats.graphs",
    "generate_cluster": "hetplanner.cluster.generators",
    "preset": "hetplanner.workload.presets",
    "preset_names": "hetplanner.workload.presets",
    "BoundaryLayers": "hetplanner.workload.transformer",
    "load_workload": "hetplanner.workload.load",
    "Adapters": "hetplanner.workload.fine_tuning",
    "FineTuning": "hetplanner.workload.fine_tuning",
    "export_model": "hetplanner.runs.exporting",
    "save_workload": "hetplanner.workload.files",
    "capture_config": "hetplanner.workload.capturing.capture",
    "capture_model_code": "hetplanner.workload.capturing.capture",
    "Workload": "hetplanner.workload.workload",
    "Constraints": "hetplanner.plan.problem",
    "Problem": "hetplanner.plan.problem",
    "Plan": "hetplanner.plan.model",
    "ElasticPlan": "hetplanner.plan.elastic.model",
    "load_plan": "hetplanner.plan.files.plan_files",
    "load_elastic_plan": "hetplanner.plan.files.plan_files",
    "save_plan": "hetplanner.plan.files.plan_files",
    "TrainConfig": "hetplanner.plan.train",
    "estimate_plan": "hetplanner.cost.estimate",
    "attribute_gain": "hetplanner.planners.variants.attribution",
    "Changes": "hetplanner.planners.variants.whatif",
    "evaluate_changes": "hetplanner.planners.variants.whatif",
    "tighter_bound": "hetplanner.planners.dtfm.tighter_bound",
    "simulate": "hetplanner.simulator.simulation",
    "summarise_trace": "hetplanner.simulator.simulation",
    "Jitter": "hetplanner.simulator.jitter",
    "simulate_spread": "hetplanner.simulator.timing",
    "simulate_step_s": "hetplanner.simulator.timing",
    "reschedule": "hetplanner.planners.variants.schedules",
    "reorder": "hetplanner.planners.variants.orders",
    "square_cube_law": "hetplanner.cost.square_cube",
    "Rebalancing": "hetplanner.plan.elastic.rebalancing",
    "load_preemptions": "hetplanner.elastic.forecast.preemptions",
    "save_preemptions": "hetplanner.elastic.forecast.preemptions",
    "generate_preemptions": "hetplanner.elastic.forecast.preemption_generators",
    "make_fleet": "hetplanner.elastic.forecast.preemption_generators",
    "steady_state_plan": "hetplanner.cost.elastic.steady_state",
    "forecast": "hetplanner.notebook",
    "simulate_swarm": "hetplanner.elastic.forecast.fluid",
    "spread_over_seeds": "hetplanner.elastic.forecast.swarm_run",
    "calibrate": "hetplanner.notebook",
    "utilisation_of_run": "hetplanner.runs.reports.utilisation",
    "report_run": "hetplanner.runs.reports.report",
    "report_swarm": "hetplanner.runs.reports.swarm_report",
    "apply_calibration": "hetplanner.calibration.model",
    "load_calibration": "hetplanner.calibration.model",
    "save_calibration": "hetplanner.calibration.model",
    "profile": "hetplanner.notebook",
    "Profile": "hetplanner.profiles.model",
    "load_profile": "hetplanner.profiles.files",
    "save_profile": "hetplanner.profiles.files",
    "merge_profiles": "hetplanner.profiles.files",
    "import_profile": "hetplanner.profiles.imports.registry",
    "compute_sources": "hetplanner.cost.compute.sources",
    "fit_published": "hetplanner.calibration.dtfm_rows",
    "search": "hetplanner.notebook",
    "baselines": "hetplanner.notebook",
    "compare_planners": "hetplanner.notebook",
    "pareto": "hetplanner.notebook",
    "rehearse": "hetplanner.notebook",
    "launch": "hetplanner.notebook",
    "watch": "hetplanner.notebook",
    "dashboard": "hetplanner.notebook",
    "draw": "hetplanner.notebook",
}

__all__ = ["plots", *_HOMES]


def __getattr__(name: str) -> Any:
    if name == "plots":
        return import_module("hetplanner.plots")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hetplanner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
