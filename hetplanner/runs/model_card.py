"""The model card of an exported model: what it is, the plan that trained it, its data and its losses."""

from pathlib import Path

from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.runs.run import Run
from hetplanner.schema import one_line
from hetplanner.units import short_seconds

ROWS = 20
"""Most losses that the card lists."""


def model_card(run: Run, step: int) -> str:
    """README.md in Markdown with the front matter that the hub reads. Folders stand there by their last name alone.

    Args:
        run: that trained the model; read to its end here.
        step: optimiser steps in the exported weights.
    """
    run.read_all()
    workload, config = run.any_plan.problem.workload, run.config
    begun = _name_of(config.init_from) or "random weights"
    size = f"samples of {workload.seq_len} tokens" if workload.reads_tokens else "samples"
    settings = (
        f"{workload.optimizer}, learning rate {config.learning_rate:g} ({config.lr_schedule}, {config.warmup_steps}"
        f" steps of warm-up), weight decay {config.weight_decay:g}, {workload.global_batch} {size} a step"
    )
    lines = [
        "---",
        "library_name: transformers",
        "tags: [hetplanner]",
        "---",
        "",
        f"# {one_line(workload.name)}",
        "",
        f"Trained for {step} steps by hetplanner (run `{run.id}`), from {begun}.",
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
    held_out = [loss for number, loss in run.validation_losses() if number < step]
    return [*rows, "", f"Loss on held-out data: {held_out[-1]:.4f}"] if held_out else rows
