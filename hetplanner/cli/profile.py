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
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Of a processor; all cores if not given.", min=1)] = None,
    kind: Annotated[
        str | None, typer.Option(help="What clusters call the device; what the catalog calls it if not given.")
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
    changes: dict[str, Any] = {
        "layers": layers,
        "seq_len": seq_len,
        "dtype": dtype,
        "optimizer": optimizer,
        "adapters": adapters,
    }
    changes |= {"boundary_layers": boundary_layers, "shared_layers": shared_layers, "freeze_layers": freeze_layers}
    workload = chosen_workload(model, model_code, micro_batch=None, global_batch=None, **changes)
    is_whole = True
    if imported and (micro_batches is not None or threads is not None or device != "auto"):
        raise InvalidInput("--import: reads what is there; leave --micro-batch, --device and --threads out")
    if imported:
        found = import_profile(imported, workload, kind)
    else:
        found, is_whole = _measured(workload, _sizes(micro_batches, workload), device, threads, kind)
    if out is not None:
        save_profile(found, out)
    _tell(found, out, as_json=as_json)
    if not is_whole:
        notices.print("interrupted; the micro-batches that were measured whole are kept")
        raise KeyboardInterrupt


def _sizes(text: str | None, workload: Workload) -> tuple[int, ...]:
    if text is None:
        return (workload.micro_batch,)
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part[:9]) > 0 and len(part) < 8 for part in parts):
        raise InvalidInput(f"--micro-batch: must be whole numbers from 1, comma-separated, got {text!r:.60}")
    return tuple(int(part) for part in parts)


def _measured(
    workload: Workload, sizes: tuple[int, ...], device: str, threads: int | None, kind: str | None
) -> tuple[Profile, bool]:
    from hetplanner.profiles.measuring import measured_profile

    is_whole = True
    with progress_line("loading torch") as (show, stopped):

        def tell(done: int, total: int, words: str) -> bool:
            nonlocal is_whole
            show(description=words, completed=done, total=total)
            is_whole = is_whole and not stopped()
            return is_whole

        found = measured_profile(workload, sizes, device=device, threads=threads, kind=kind, on_layer=tell)
    return found, is_whole


def _tell(found: Profile, out: Path | None, *, as_json: bool) -> None:
    from hetplanner.profiles.files import profile_to_data
    from hetplanner.profiles.layer_table import NUMBERS, layer_table

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
    if out is not None:
        console.print(f"profile written to {out}; plan with it: hetplanner plan CLUSTER MODEL --profile {out}")
