"""The options that describe a problem; every command that searches takes them all."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetplanner.cli.cluster import ClusterFile
from hetplanner.cli.model import (
    AdapterOption,
    BoundaryLayers,
    FreezeLayers,
    GlobalBatch,
    Layers,
    MicroBatch,
    ModelCode,
    Optimizer,
    OptionalModel,
    Precision,
    SeqLen,
    SharedLayers,
    chosen_workload,
)
from hetplanner.codecs.spec import ALLOWED_CODECS, DEFAULT_MAX_RATIO
from hetplanner.errors import InvalidInput
from hetplanner.plan.reducers.names import REDUCER_NAMES

if TYPE_CHECKING:
    from hetplanner.plan.problem import Problem
    from hetplanner.planners.interface import Budget

Loader = Callable[[], "Problem"]


Objective = Annotated[str, typer.Option(help="step-time, cost (tokens per dollar) or dtfm.")]
Stages = Annotated[int | None, typer.Option(help="Pipeline stages; free if not given.")]
Replicas = Annotated[int | None, typer.Option(help="Replicas of every stage; free if not given.")]
Codecs = Annotated[str, typer.Option(help=f"Allowed codecs, comma-separated: {','.join(ALLOWED_CODECS)}.")]
MaxRatio = Annotated[float, typer.Option(help="Greatest compression by topk or adatopk: dense bytes over bytes sent.")]
Reducers = Annotated[
    str,
    typer.Option(help=f"Ways to add up gradients, comma-separated; all if not given: {','.join(REDUCER_NAMES)}."),
]
MaxLocalSteps = Annotated[
    int,
    typer.Option(help="Most steps that replicas may take by themselves between two reductions (DiLoCo)."),
]
Fragments = Annotated[
    int,
    typer.Option(help="With local steps: pieces of the weights that are averaged in turn (Streaming DiLoCo)."),
]
Profiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Measured seconds of the model's layers (hetplanner profile), instead of the devices' rates; repeatable.",
    ),
]
Tensor = Annotated[
    str,
    typer.Option(help="Devices of a host that may serve a replica as one group: degrees, such as 1,2,4,8."),
]
ShardingOption = Annotated[
    str,
    typer.Option(
        "--sharding",
        help="What the devices of a group may divide: tensor (layers), zero2 (samples; gradients and optimizer states),"
        " zero3 (weights, too); comma-separated.",
    ),
]
Zero = Annotated[
    int,
    typer.Option(
        help="Stage of ZeRO: 1 shards the optimizer's states over the replicas of a stage, 0 gives each replica all."
    ),
]
Exclude = Annotated[str, typer.Option(help="Devices that must not be used, comma-separated.")]
Pin = Annotated[str, typer.Option(help="Devices and the stage each must serve, such as d3=0,d4=1.")]


def load_problem(
    cluster: ClusterFile,
    model: OptionalModel = None,
    model_code: ModelCode = None,
    objective: Objective = "step-time",
    stages: Stages = None,
    replicas: Replicas = None,
    codecs: Codecs = "none",
    max_ratio: MaxRatio = DEFAULT_MAX_RATIO,
    reducers: Reducers = "",
    max_local_steps: MaxLocalSteps = 1,
    fragments: Fragments = 1,
    exclude: Exclude = "",
    pin: Pin = "",
    layers: Layers = None,
    global_batch: GlobalBatch = None,
    micro_batch: MicroBatch = None,
    seq_len: SeqLen = None,
    dtype: Precision = None,
    boundary_layers: BoundaryLayers = None,
    shared_layers: SharedLayers = None,
    optimizer: Optimizer = None,
    adapters: AdapterOption = None,
    freeze_layers: FreezeLayers = None,
    profiles: Profiles = None,
    tensor: Tensor = "1",
    sharding: ShardingOption = "tensor",
    zero: Zero = 0,
) -> "Problem":
    """The problem of the options given; what is not given is free. Raises InvalidInput."""
    from hetplanner.cluster.formats.cluster_files import load_cluster
    from hetplanner.plan.problem import Problem
    from hetplanner.profiles.files import load_profiles
    from hetplanner.schema import checked

    changes: dict[str, Any] = {"layers": layers, "seq_len": seq_len, "dtype": dtype}
    changes |= {"optimizer": optimizer, "adapters": adapters}
    changes |= {"boundary_layers": boundary_layers, "shared_layers": shared_layers, "freeze_layers": freeze_layers}
    workload = chosen_workload(model, model_code, global_batch=global_batch, micro_batch=micro_batch, **changes)
    constraints = {
        "stages": stages,
        "replicas": replicas,
        "codecs": listed(codecs),
        "max_ratio": max_ratio,
        "reducers": listed(reducers),
        "max_local_steps": max_local_steps,
        "fragments": fragments,
        "excluded": listed(exclude),
        "pinned": pins(pin),
        "tensor": degrees(tensor),
        "sharding": listed(sharding),
        "zero": zero,
    }
    given = {name: value for name, value in constraints.items() if value not in (None, (), {})}
    known = {"cluster": load_cluster(cluster), "profile": load_profiles(profiles) if profiles else None}
    return checked(Problem, known | {"workload": workload, "objective": objective, "constraints": given}, "plan")


def takes_problem(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of :func:`load_problem`, before its own; its first argument loads the problem.

    Args:
        without: options that the command does not have.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        shared = [p for p in inspect.signature(load_problem).parameters.values() if p.name not in without]
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        names = {p.name for p in shared}

        @wraps(command)
        def run(**given: Any) -> None:
            mine = {name: value for name, value in given.items() if name not in names}
            command(lambda: load_problem(**{name: given[name] for name in names}), **mine)

        # Typer reads the options off the signature.
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*shared, *own)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def budget_of(budget: str | None, evaluations: int | None) -> "Budget":
    """The budget of two options; a count of plans goes before a time. Raises InvalidInput."""
    from hetplanner.planners.interface import Budget

    return Budget(evaluations=evaluations) if evaluations is not None else Budget.parse(budget)


def listed(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated option."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def pins(text: str) -> dict[str, int]:
    """Stages by device, from `d3=0,d4=1`. Raises InvalidInput."""
    found: dict[str, int] = {}
    for part in listed(text):
        device, equals, stage = part.rpartition("=")
        if not equals or not device.strip() or not stage.strip().isdecimal():
            raise InvalidInput(f"--pin: must be device=stage, comma-separated, such as d3=0,d4=1; got {part!r:.60}")
        if device.strip() in found:
            raise InvalidInput(f"--pin: {device.strip()!r:.60} is given twice; a device serves one stage")
        found[device.strip()] = int(stage)
    return found


def degrees(text: str) -> tuple[int, ...]:
    """Degrees of groups, from `1,2,4`. Raises InvalidInput."""
    parts = listed(text)
    if not parts or not set(parts) <= {"1", "2", "4", "8"}:
        raise InvalidInput(f"--tensor: must be degrees of 1, 2, 4 and 8, comma-separated, got {text!r:.40}")
    return tuple(int(part) for part in parts)
