"""Measures a profile on a device of this host, in a process of its own: the caller loads no torch."""

import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

from hetplanner.errors import HetplannerError, InvalidInput, RunError
from hetplanner.liveness.processes import killed_at_end
from hetplanner.profiles.layers import layer_runs
from hetplanner.profiles.match import profile_of
from hetplanner.profiles.model import CollectiveCost, LayerCost, Profile
from hetplanner.reading import note
from hetplanner.schema import one_line
from hetplanner.workload.files import workload_to_data
from hetplanner.workload.tensor_degrees import why_not
from hetplanner.workload.workload import Workload

MODULE = "hetplanner.runtime.measure.layer_profile"
REFUSED = 3
"""Its exit code when a line has said why."""
WINDOW_S = 1.0
"""Of a layer at a micro-batch."""
LOOK_EVERY_S = 0.2

OnLayer = Callable[[int, int, str], bool]
"""Takes layers measured so far, all of them, and words about the next; returns whether to go on."""


def measured_profile(
    workload: Workload,
    micro_batches: Sequence[int],
    *,
    degrees: Sequence[int] = (1,),
    device: str = "auto",
    threads: int | None = None,
    kind: str | None = None,
    window_s: float = WINDOW_S,
    on_layer: OnLayer | None = None,
) -> Profile:
    """Seconds and kept bytes of every distinct layer of a workload on a device of this host.

    Args:
        workload: what is profiled; one that can be trained.
        micro_batches: sizes to measure; of a captured model its own alone.
        degrees: how many devices of this host share each layer; every size is measured at every degree.
        device: cpu, cuda, cuda:N or auto, as for training.
        threads: of a processor, and of each device of a group there; all cores if not given.
        kind: what clusters call the device; the catalog's name of what is found if not given.
        window_s: seconds of measuring for each layer and micro-batch.
        on_layer: is told of the progress, several times a second; False ends it.

    Returns:
        The profile; when it was ended or a size did not fit, of the sizes and degrees that were measured whole.

    Raises:
        InvalidInput: a size that the model does not have, a degree that does not divide it, or no such device.
        RunError: the measuring process failed, or was ended before one micro-batch was whole.
    """
    sizes = tuple(dict.fromkeys(micro_batches))
    _check(workload, sizes, threads)
    counts = tuple(dict.fromkeys(degrees))
    _check_degrees(workload, counts)
    names = tuple(dict.fromkeys(run.name for run in layer_runs(workload)))
    request: dict[str, Any] = {"workload": workload_to_data(workload), "micro_batches": sizes, "degrees": counts}
    request |= {"device": device, "threads": threads, "window_s": window_s}
    lines: list[dict[str, Any]] = []
    total = len(counts) * len(sizes) * len(names)
    failed = _measure(request, lines, lambda: on_layer is None or on_layer(_count(lines), total, _next(lines)))
    rows = [line for line in lines[1:] if "layer" in line]
    collectives = [line for line in lines[1:] if "collective" in line]
    whole = [row for row in rows if sum(_cell(other) == _cell(row) for other in rows) == len(names)]
    if failed is not None and not whole:
        raise failed
    if failed is not None:
        note(f"{failed}; the micro-batches that were measured before are kept")
    if not whole:
        raise RunError("the profile was ended before a micro-batch was measured whole; nothing is left of it")
    return _profile_of_rows(workload, lines[0], whole, collectives, kind)


def _profile_of_rows(
    workload: Workload, about: dict[str, Any], rows: Sequence[dict[str, Any]], collectives: Sequence[dict[str, Any]],
    kind: str | None,
) -> Profile:  # fmt: skip
    """The profile of what was measured; `about` is what the measuring process says of the device."""
    named = kind or str(about["kind"])
    when = date.today().isoformat()
    return profile_of(
        workload,
        [LayerCost(kind=named, **row) for row in rows],
        name=f"{workload.name} on {named}",
        source=f"measured on {about['device']} ({about['with']}), torch {about['torch']}, {when}",
        torch=about["torch"],
        collectives=[CollectiveCost(kind=named, **row) for row in collectives],
    )


def _measure(
    request: dict[str, Any], lines: list[dict[str, Any]], goes_on: Callable[[], bool]
) -> HetplannerError | None:
    """Appends what the measuring process tells, the device first; returns why it failed."""
    try:
        for line in _lines(request, goes_on):
            if "error" in line:
                return InvalidInput(f"profile: {one_line(str(line['error']))}")
            lines.append(line)
    except RunError as error:
        return error
    return None


def _check(workload: Workload, sizes: Sequence[int], threads: int | None) -> None:
    if not sizes or min(sizes) < 1:
        raise InvalidInput(f"micro-batches: must be one or more numbers from 1, got {list(sizes)}")
    is_fixed = workload.program is not None and workload.program.per_sample is None
    if is_fixed and set(sizes) != {workload.micro_batch}:
        raise InvalidInput(
            f"micro-batches: a captured model has micro-batches of {workload.micro_batch} alone, got"
            f" {', '.join(map(str, sizes))}; capture it with others (--micro-batch), and profile each"
        )
    if workload.transformer is None and workload.program is None:
        raise InvalidInput(f"workload {workload.name!r:.60}: has no program to run; capture it from its code")
    if threads is not None and not 1 <= threads <= 4096:
        raise InvalidInput(f"threads: must be from 1 to 4096, got {threads}")


def _check_degrees(workload: Workload, degrees: Sequence[int]) -> None:
    if not degrees:
        raise InvalidInput("tensor: must be one or more degrees, such as 1,2")
    for degree in degrees:
        if why := why_not(workload, degree):
            raise InvalidInput(f"tensor: {why}")


def _cell(row: dict[str, Any]) -> tuple[int, int]:
    return row["micro_batch"], row.get("degree", 1)


def _count(lines: Sequence[dict[str, Any]]) -> int:
    """Layers that were measured."""
    return sum("layer" in line for line in lines)


def _next(lines: Sequence[dict[str, Any]]) -> str:
    if len(lines) < 2:
        return "measuring" if lines else "loading torch"
    if "collective" in lines[-1]:
        return f"measured {lines[-1]['collective']} of {lines[-1]['degree']} devices"
    size, degree = _cell(lines[-1])
    return f"measured {lines[-1]['layer']} at micro-batch {size}" + (f", degree {degree}" if degree > 1 else "")


def _lines(request: dict[str, Any], goes_on: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """Lines of JSON that the measuring process prints, until it ends or is ended."""
    with tempfile.TemporaryDirectory(prefix="hetplanner-profile-") as folder:
        asked = Path(folder, "request.json")
        asked.write_text(json.dumps(request), encoding="utf-8")
        with Path(folder, "errors.txt").open("w+b") as errors, _child(asked, errors) as child:
            assert child.stdout is not None
            for line in _awaited(child, goes_on):
                yield json.loads(line)
            if goes_on() and child.wait() not in (0, REFUSED):
                errors.seek(0)
                said = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
                words = said[-1] if said else "no word"
                raise RunError(f"the measuring process ended with code {child.returncode}: {words:.300}")


def _awaited(child: "subprocess.Popen[str]", goes_on: Callable[[], bool]) -> Iterator[str]:
    """The child's lines as they come; asks several times a second whether to go on."""
    lines: queue.Queue[str | None] = queue.Queue()

    def follow() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=follow, daemon=True).start()
    while goes_on():
        with suppress(queue.Empty):
            line = lines.get(timeout=LOOK_EVERY_S)
            if line is None:
                return
            yield line


@contextmanager
def _child(asked: Path, errors: Any) -> "Iterator[subprocess.Popen[str]]":
    """The measuring process; it is dead at the end."""
    child = subprocess.Popen(
        [sys.executable, "-m", MODULE, str(asked)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    with killed_at_end(child):
        yield child
