"""hetplanner profile: measure a model's layers on a device of this host, or read what another tool measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetplanner.cli.model import (
    AdapterOption,
    BoundaryLayers,
    FreezeLayers,
    Layers,
    ModelCode,
    Optimizer,
    OptionalModel,
    Precision,
    SeqLen,
    SharedLayers,
    chosen_workload,
)
from hetplanner.cli.output import AsJson, bold, console, notices, print_json, progress_line, table
from hetplanner.errors import InvalidInput
from hetplanner.units import short_seconds

if TYPE_CHECKING:
    from hetplanner.profiles.model import Profile
    from hetplanner.workload.workload import Workload


def profile(
    model: OptionalModel = None,
    model_code: ModelCode = None,
    micro_batches: Annotated[
        str | None,
        typer.Option("--micro-batch", help="Sizes to measure, such as 1,2,4; the model's if not given."),
    ] = None,
    tensor: Annotated[
        str | None,
        typer.Option(help="How many devices of this host share each layer, such as 1,2,4; 1 if not given."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(help="Of a processor, and of each device that shares its layers; all cores if not given.", min=1),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Name of the device in cluster files; default: its name in the catalog.")
    ] = None,
    imported: Annotated[
        list[Path] | None,
        typer.Option(
            "--import", metavar="FILE", help="Read another tool's measurements (CSV, Sailor, Metis, AMP); repeatable."
        ),
    ] = None,
    layers: Layers = None,
    seq_len: SeqLen = None,
    dtype: Precision = None,
    boundary_layers: BoundaryLayers = None,
    shared_layers: SharedLayers = None,
    optimizer: Optimizer = None,
    adapters: AdapterOption = None,
    freeze_layers: FreezeLayers = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the profile file here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure seconds and memory of MODEL's layers on a device of this host; plan with it: plan --profile FILE."""
    from hetplanner.profiles.files import save_profile
    from hetplanner.profiles.imports.registry import import_profile
    from hetplanner.schema import check_writable

    if out is not None:
        check_writable(out)
    changes: dict[str, Any] = {"layers": layers, "seq_len": seq_len, "dtype": dtype, "optimizer": optimizer}
    changes |= {"adapters": adapters, "freeze_layers": freeze_layers}
    changes |= {"boundary_layers": boundary_layers, "shared_layers": shared_layers}
    workload = chosen_workload(model, model_code, micro_batch=None, global_batch=None, **changes)
    is_whole = True
    measuring: dict[str, Any] = {"micro_batches": micro_batches, "tensor": tensor, "threads": threads, "device": device}
    if imported:
        _refuse(measuring)
        found = import_profile(imported, workload, kind)
    else:
        found, is_whole = _measured(workload, kind, **measuring)
    if out is not None:
        save_profile(found, out)
    _tell(found, out, as_json=as_json)
    if not is_whole:
        notices.print("interrupted; complete measurements are kept")
        raise KeyboardInterrupt


def _numbers(text: str | None, option: str) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part[:9]) > 0 and len(part) < 8 for part in parts):
        raise InvalidInput(f"{option}: must be whole numbers from 1, comma-separated, got {text!r:.60}")
    return tuple(int(part) for part in parts)


def _refuse(measuring: dict[str, Any]) -> None:
    """Refuses options of a measurement where nothing is measured. Raises InvalidInput."""
    if measuring.pop("device") != "auto" or any(given is not None for given in measuring.values()):
        raise InvalidInput("--import: measures nothing; leave --micro-batch, --tensor, --device and --threads out")


def _measured(
    workload: Workload, kind: str | None, *, micro_batches: str | None, tensor: str | None, **settings: Any
) -> tuple[Profile, bool]:
    from hetplanner.profiles.measuring import measured_profile

    sizes = _numbers(micro_batches, "--micro-batch") or (workload.micro_batch,)
    degrees, is_whole = _numbers(tensor, "--tensor") or (1,), True
    with progress_line("loading torch") as (show, stopped):

        def tell(done: int, total: int, words: str) -> bool:
            nonlocal is_whole
            show(description=words, completed=done, total=total)
            is_whole = is_whole and not stopped()
            return is_whole

        found = measured_profile(workload, sizes, degrees=degrees, kind=kind, on_layer=tell, **settings)
    return found, is_whole


def _tell(found: Profile, out: Path | None, *, as_json: bool) -> None:
    from hetplanner.profiles.files import profile_to_data
    from hetplanner.profiles.layer_table import NUMBERS, collective_lines, layer_table

    if as_json:
        print_json(profile_to_data(found) | {"file": str(out) if out else None})
        return
    console.print(bold(found.name), f" {found.dtype}, {found.seq_len} tokens; {found.source}")
    head, lines = layer_table(found)
    rows = table("Layers, of one micro-batch", *head, right=NUMBERS)
    for line in lines:
        rows.add_row(*line)
    console.print(rows)
    for kind, degree, size in found.costs:
        whole = short_seconds(found.model_seconds(kind, degree, size))
        more = f", degree {degree}" if degree > 1 else ""
        console.print(f"{kind}, micro-batch {size}{more}: {whole} through the model and back")
    for words in collective_lines(found):
        console.print(words)
    if out is not None:
        console.print(f"profile written to {out}; plan with it: hetplanner plan CLUSTER MODEL --profile {out}")
