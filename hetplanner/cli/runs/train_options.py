"""The options of `hetplanner train`."""

from pathlib import Path
from typing import Annotated

import typer

Launcher = Annotated[
    str,
    typer.Option(
        help="Where to run: local (this machine), ssh (hosts), slurm (a job); with --dry-run kubernetes (a file)"
        " and torchrun (lines to paste)."
    ),
]
HostsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="How the launcher reaches the plan's hosts; default: each by its own name."),
]
EmulateLinks = Annotated[
    bool, typer.Option("--emulate-links", help="Delay every transfer as the plan's links and NICs would.")
]
Connections = Annotated[
    int, typer.Option(help="TCP connections between two ranks; several fill a long path that one cannot.")
]
Steps = Annotated[int, typer.Option(help="Optimiser steps.")]
Data = Annotated[
    str | None,
    typer.Option(
        help="Text, token files (.bin), a saved Hugging Face data set, a folder of images, or 'digits'; default:"
        " Python's own sources, digits for images."
    ),
]
EvalData = Annotated[
    str | None,
    typer.Option(help="Evaluation data, as for --data, used whole; default: the validation split of --data."),
]
EvalEvery = Annotated[
    int | None, typer.Option(help="Steps between evaluations; there is one after the last step anyway.")
]
EvalBatches = Annotated[int, typer.Option(help="Global batches of one evaluation, no more than the data has.")]
Seed = Annotated[int, typer.Option(help="Of initialisation and data order.")]
LearningRate = Annotated[float, typer.Option(help="The greatest learning rate.")]
WarmupSteps = Annotated[int, typer.Option(help="Steps over which the learning rate rises.")]
LrSchedule = Annotated[
    str, typer.Option(help="How the learning rate falls after the warm-up: constant, linear or cosine.")
]
LrFloor = Annotated[float, typer.Option(help="Share of the learning rate left at the last step.")]
LrFromZero = Annotated[
    bool,
    typer.Option("--lr-from-zero", help="Warm up from 0, as transformers.get_scheduler does."),
]
WeightDecay = Annotated[float, typer.Option(help="Of matrices; norms and biases do not decay.")]
Betas = Annotated[tuple[float, float], typer.Option(help="How slowly AdamW's two moments change.")]
Momentum = Annotated[float | None, typer.Option(help="Of sgd (0.9 if not given) and muon (0.95).")]
ClipNorm = Annotated[float | None, typer.Option(help="Greatest global gradient norm.")]
Device = Annotated[str, typer.Option(help="auto (a GPU where plan and host have one), cpu or cuda.")]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="Steps between checkpoints; there is one after the last step too.")
]
CheckpointsKept = Annotated[int, typer.Option(help="How many of them stay.")]
CheckpointsMaxAge = Annotated[
    str | None, typer.Option(metavar="TIME", help="Remove older ones, such as 12h, but for the last.")
]
CheckpointsAsync = Annotated[
    bool,
    typer.Option(
        "--checkpoints-async", help="Write checkpoints in the background, from a copy of the state in memory."
    ),
]
CopyTo = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Copy checkpoints to this address, such as s3://bucket/folder."),
]
InitFrom = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Begin with the weights of this Hugging Face model folder (config.json, *.safetensors)."
    ),
]
AdapterFolder = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        metavar="DIR",
        help="Go on with this saved adapter (adapter_config.json, adapter_model.safetensors); with --init-from.",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="Continue from this run's last checkpoint. Options that are not given keep their values."
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST", help="A lost host of the plan. The others get a new plan."),
]
Budget = Annotated[str | None, typer.Option(help="Time for that search, such as 10s; default: 5s.")]
MaxRestarts = Annotated[
    int,
    typer.Option(
        help="How often to start again: all ranks from the last checkpoint after a loss or a preemption, counted in"
        " all; of a swarm each process that died."
    ),
]
Replan = Annotated[
    bool,
    typer.Option(
        "--replan",
        help="Over ssh: go on without a lost host under a new plan, and with it when it is back.",
    ),
]
DeltaCacheBytes = Annotated[
    int, typer.Option(help="Memory for earlier samples at each end of a boundary, where its codec has delta.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Return as soon as the run is submitted.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would run, and start nothing.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Run directory; default: under HETPLANNER_HOME.")]
Sinks = Annotated[
    list[str] | None,
    typer.Option(help="Send the curves there while it trains: tensorboard, wandb, mlflow, prometheus; repeatable."),
]
