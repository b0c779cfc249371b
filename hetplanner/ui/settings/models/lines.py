"""A plan's problem as it is asked for elsewhere: the command that plans it again, and its lines in a notebook."""

import shlex
from typing import Any

from hetplanner.errors import HetplannerError
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import planner_names
from hetplanner.workload.presets import NO_ADAPTERS, NO_BOUNDARY_LAYERS, preset, preset_names
from hetplanner.workload.workload import Workload

MODEL_FILE = "model.json"
"""Stands for the file that a model without a name came from."""
PROFILE_FILE = "profile.json"
_USUAL = {
    "boundary_layers": NO_BOUNDARY_LAYERS,
    "shared_layers": 1,
    "optimizer": "adamw",
    "recompute": False,
    "adapters": NO_ADAPTERS,
    "freeze_layers": 0,
}
_WITHOUT_OPTION = {"recompute": "recompute", "codec_block": "codec block"}
"""What the command line has no option for."""


def plan_command(plan: AnyPlan) -> str:
    """`hetplanner plan` for the plan's problem, below a comment with the files it reads and what has no option."""
    problem = plan.problem
    model, options = _model(problem.workload)
    options |= _wishes(problem) | _mode(plan) | _search(plan)
    left_out = [words for name, words in _WITHOUT_OPTION.items() if options.pop(name, None) is not None]
    words = ["hetplanner", "plan", "cluster.json", model or MODEL_FILE]
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [str(value)]
    given = ["cluster.json: from the Cluster page", *([] if model else [f"{MODEL_FILE}: the model's own file"])]
    given += [f"{PROFILE_FILE}: from the Cluster page"] if problem.profile is not None else []
    given += [f"{', '.join(left_out)}: set on the page only"] if left_out else []
    return f"# {'; '.join(given)}\n{shlex.join([*words, '-o', 'plan.json'])}"


def problem_snippet(plan: AnyPlan) -> str:
    """The problem in a notebook, beside `plan`: to search it again, or changed."""
    model, options = _model(plan.problem.workload)
    how = ', planner="swarm", settings={"mode": "elastic"}' if isinstance(plan, ElasticPlan) else ""
    words = [repr(model), *(f"{name}={value!r}" for name, value in options.items())]
    workload = "plan.problem.workload" if model is None else f"hp.preset({', '.join(words)})"
    search = {"budget": "10 s"} | _search(plan)
    given = ", ".join(f"{name}={value!r}" for name, value in search.items())
    kept = f'# plan.problem has a measured profile; elsewhere: profile=hp.load_profile("{PROFILE_FILE}")\n'
    return (
        f"problem = plan.problem.replace(workload={workload})  # change it here, then search again\n"
        f"{kept if plan.problem.profile is not None else ''}"
        f"result = hp.search(problem{how}, {given})"
    )


def _model(workload: Workload) -> tuple[str | None, dict[str, Any]]:
    """Name of the preset (None: the model is a file's) and what must be given beside it."""
    mine = _arguments(workload)
    if workload.name in preset_names():
        own = _arguments(preset(workload.name))
        changed = {name: value for name, value in mine.items() if value != own.get(name)}
        try:
            if preset(workload.name, **changed) == workload:
                return workload.name, changed
        except HetplannerError:
            pass  # a file's model that only bears the name
    return None, {name: value for name, value in mine.items() if value != _USUAL.get(name)}


def _arguments(workload: Workload) -> dict[str, Any]:
    """The model's sizes and options, by the argument of `hetplanner.preset`."""
    found: dict[str, Any] = {}
    model = workload.transformer
    if model is not None:
        narrow = NO_BOUNDARY_LAYERS if model.boundary_layers is None else str(model.boundary_layers)
        found = {"layers": model.layers, "seq_len": workload.seq_len}
        found |= {"boundary_layers": narrow, "shared_layers": model.shared_layers}
        tuning = workload.fine_tuning
        adapters = tuning.adapters if tuning is not None else None
        found |= {"adapters": NO_ADAPTERS if adapters is None else str(adapters)}
        found |= {"freeze_layers": tuning.frozen_layers if tuning is not None else 0}
    names = ("global_batch", "micro_batch", "dtype", "optimizer", "recompute")
    return found | {name: getattr(workload, name) for name in names}


def _wishes(problem: Problem) -> dict[str, Any]:
    """Objective and constraints that differ from the usual ones, by option."""
    wanted, usual = problem.constraints, Constraints()
    found: dict[str, Any] = {} if problem.objective == "step-time" else {"objective": problem.objective}
    for name in ("stages", "replicas", "codecs", "codec_block", "max_ratio", "reducers", "max_local_steps",
                 "fragments", "tensor", "sharding", "zero"):  # fmt: skip
        value = getattr(wanted, name)
        if value != getattr(usual, name):
            found[name] = ",".join(map(str, value)) if isinstance(value, tuple) else value
    if wanted.excluded:
        found["exclude"] = ",".join(wanted.excluded)
    if wanted.pinned:
        found["pin"] = ",".join(f"{device}={stage}" for device, stage in wanted.pinned.items())
    return found if problem.profile is None else found | {"profile": PROFILE_FILE}


def _search(plan: AnyPlan) -> dict[str, Any]:
    """Budget and seed of the search that found the plan; nothing for a plan that none found."""
    origin = plan.provenance
    if origin.planner not in planner_names():
        return {}
    found: dict[str, Any] = {} if origin.budget is None else {"budget": origin.budget}
    return found if origin.seed is None else found | {"seed": origin.seed}


def _mode(plan: AnyPlan) -> dict[str, Any]:
    """The planner, and the rules of a swarm."""
    if not isinstance(plan, ElasticPlan):
        planner = plan.provenance.planner
        return {"planner": planner} if planner in planner_names()[1:] else {}
    found: dict[str, Any] = {"mode": "elastic"}
    if plan.rebalancing.policy != Rebalancing().policy:
        found["rebalancing"] = plan.rebalancing.policy
    if plan.delayed_updates:
        found["delayed_updates"] = True
    if plan.is_local:
        found["local_steps"] = plan.local_steps
    return found
