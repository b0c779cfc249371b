"""The model card of an exported model: what it is, the plan that trained it, its data and its losses."""

import json
from pathlib import Path

from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.reading import reading
from hetplanner.runs.run import Run
from hetplanner.schema import one_line, parse_json, read_text
from hetplanner.units import short_seconds
from hetplanner.weights.adapters import adapters_of
from hetplanner.weights.folder import CONFIG, MAX_CONFIG_BYTES
from hetplanner.workload.fine_tuning import Adapters

ROWS = 20
"""Most losses that the card lists."""


def model_card(run: Run, step: int, *, merge: bool = False) -> str:
    """README.md in Markdown with the front matter that the hub reads. Folders stand there by their last name alone.

    Args:
        run: that trained the model; read to its end here.
        step: optimiser steps in the exported weights.
        merge: whether adapters are part of the weights.
    """
    run.read_all()
    workload, config = run.any_plan.problem.workload, run.config
    begun = _name_of(config.init_from) or "random weights"
    adapters = adapters_of(workload)
    is_adapter = adapters is not None and not merge
    size = f"samples of {workload.seq_len} tokens" if workload.reads_tokens else "samples"
    settings = (
        f"{workload.optimizer}, learning rate {config.learning_rate:g} ({config.lr_schedule}, {config.warmup_steps}"
        f" steps of warm-up), weight decay {config.weight_decay:g}, {workload.global_batch} {size} a step"
    )
    lines = [
        "---",
        f"library_name: {'peft' if is_adapter else 'transformers'}",
        *([f"base_model: {json.dumps(base_model(run))}"] if is_adapter and config.init_from is not None else []),
        "tags: [hetplanner]",
        "---",
        "",
        f"# {one_line(workload.name)}",
        "",
        f"Trained for {step} steps by hetplanner (run `{run.id}`), from {begun}.",
        *_adapter_lines(adapters, merge=merge),
        "",
        "## Plan",
        "",
        *_plan_lines(run),
        "",
        "## Data",
        "",
        f"- {_name_of(config.data) or 'the default data of hetplanner'}, seed {config.seed}",
        f"- {settings}",
        "",
        "## Losses",
        "",
        *_loss_lines(run, step),
    ]
    return "\n".join(lines) + "\n"


def base_model(run: Run) -> str:
    """What the model that a run began with is called: by its own config, else by its folder's last name."""
    begun = run.config.init_from
    if begun is None:
        return one_line(run.any_plan.problem.workload.name)
    folder = Path(begun).expanduser()
    if (folder / CONFIG).is_file():
        with reading(f"{folder}: {CONFIG}", "Hugging Face config"):
            name = parse_json(read_text(folder / CONFIG, MAX_CONFIG_BYTES), CONFIG).get("_name_or_path")
        if isinstance(name, str) and name and not Path(name).is_absolute():
            return one_line(name)
    return _name_of(begun)


def _adapter_lines(adapters: Adapters | None, *, merge: bool) -> list[str]:
    if adapters is None:
        return []
    kind = f"Low-rank adapters of rank {adapters.rank}, alpha {adapters.alpha:g}, on {', '.join(adapters.targets)}"
    return ["", f"{kind}, merged into the weights." if merge else f"{kind}; PEFT loads them beside the model."]


def _name_of(path: str | None) -> str:
    return one_line(Path(path).name) if path is not None else ""


def _plan_lines(run: Run) -> list[str]:
    plan = run.any_plan
    measured = run.measured_step_s()
    lines = [
        f"- {'swarm' if isinstance(plan, ElasticPlan) else 'static pipeline'} of {len(plan.stages)} stages on"
        f" {len(run.labels)} devices of the cluster {one_line(plan.problem.cluster.name)}",
        f"- weights and activations computed in {plan.problem.workload.dtype}, weights kept in float32",
        f"- digest of the plan: `{plan.digest()}`",
    ]
    return lines + ([f"- {short_seconds(measured)} a step"] if measured else [])


def _loss_lines(run: Run, step: int) -> list[str]:
    losses = [(number + 1, loss) for number, loss in run.losses() if number < step]
    if not losses:
        return ["No loss was recorded."]
    every = max(1, -(-len(losses) // ROWS))
    shown = sorted({*losses[::every], losses[-1]})
    rows = ["| step | training loss (nats a token) |", "|---|---|", *(f"| {n} | {loss:.4f} |" for n, loss in shown)]
    held_out = [found for found in run.evaluations() if found.step < step]
    if not held_out:
        return rows
    return [*rows, "", f"Loss on held-out data after {held_out[-1].step + 1} steps: {held_out[-1]}"]
