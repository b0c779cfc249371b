"""The planners' kernels in parts, each compiled by small searches that need it; what is compiled is marked on disk.

`python -m hetplanner.planners.kernel_parts [PART ...]` compiles what is missing and says after each part, as a line of
JSON, how many are ready. Several such processes share the work: each part has a lock. It ends when stdin closes, which
is when whoever started it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hetplanner.liveness.priority import work_in_background

DEVICES, SHAPE = 8, (4, 2)
TRIED = 400
"""Placements that each of the small searches scores."""


def _search(planner: str, objective: str, *, shape: tuple[int, int] | None = SHAPE, **settings: Any) -> None:
    from hetplanner.cluster.generators import mixed_gpus
    from hetplanner.plan.problem import Constraints, Problem
    from hetplanner.planners.registry import make_planner
    from hetplanner.workload.presets import preset

    constraints = Constraints(stages=shape[0], replicas=shape[1]) if shape else Constraints()
    task = Problem.model_validate(
        {
            "cluster": mixed_gpus(0, num_devices=DEVICES),
            "workload": preset("tiny-gpt"),
            "objective": objective,
            "constraints": constraints,
        }
    )
    make_planner(planner, settings).solve(task, budget=f"{TRIED} evaluations")


def _front() -> None:
    from hetplanner.cluster.generators import mixed_gpus
    from hetplanner.plan.problem import Problem
    from hetplanner.planners.interface import Budget
    from hetplanner.planners.pareto import search_front
    from hetplanner.workload.presets import preset

    task = Problem(cluster=mixed_gpus(0, num_devices=DEVICES), workload=preset("tiny-gpt"))
    search_front(task, budget=Budget(evaluations=TRIED))


PARTS: dict[str, tuple[str, Callable[[], None]]] = {
    "step": ("placements of equal stages", lambda: _search("evolution", "step-time", chain=100)),
    "ragged": ("stages of unlike size", lambda: _search("evolution", "step-time", shape=None, chain=100)),
    "dtfm": ("the DT-FM objective", lambda: _search("evolution", "dtfm", chain=100)),
    "front": ("step time against dollars", _front),
    "small": ("problems small enough to try whole", lambda: _search("exhaustive", "step-time", shape=(2, 1))),
    "published": ("DT-FM's own search", lambda: _search("gcma", "dtfm", trials=5)),
}
"""Name -> what it is for, in words, and what compiles it; the default search's come first."""


def is_ready(parts: Iterable[str]) -> bool | None:
    """Whether these parts are compiled; None where that is not kept."""
    from hetplanner.kernels import kernel_folder

    folder = kernel_folder()
    return None if folder is None else all(_mark(folder, part).exists() for part in parts)


def missing_parts() -> list[str]:
    """Names of the parts that are not compiled; none where that is not kept."""
    return [part for part in PARTS if is_ready([part]) is False]


def compile_parts(parts: Iterable[str] = ()) -> Iterator[str]:
    """Compiles what is missing of these parts (none: of all); yields the name of each that is done.

    Where another process compiles a part, the others come first.
    """
    chosen = list(parts) or list(PARTS)
    from hetplanner.kernels import kernel_folder

    folder = kernel_folder()
    waiting = [part for part in chosen if folder is None or not _mark(folder, part).exists()]
    yield from (part for part in chosen if part not in waiting)
    for wait in (False, True):
        for part in list(waiting):
            if _compile(part, folder, wait=wait):
                waiting.remove(part)
                yield part


def _compile(part: str, folder: Path | None, *, wait: bool) -> bool:
    """Whether the part is compiled now; not where another process is about it and is not waited for."""
    if folder is None:
        PARTS[part][1]()
        return True
    with (folder / f"{part}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        mark = _mark(folder, part)
        if not mark.exists():
            PARTS[part][1]()
            mark.touch()
    return True


def _mark(folder: Path, part: str) -> Path:
    """A file that says that a part is compiled, for this kind of processor."""
    return folder / f"{part}-{_processor()}.ready"


_known: list[str] = []


def _processor() -> str:
    if not _known:
        from llvmlite import binding

        text = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()} {sys.version_info[:2]}"
        _known.append(hashlib.sha256(text.encode()).hexdigest()[:12])
    return _known[0]


def compiler(parts: Iterable[str] = ()) -> list[str]:
    """The command that compiles these parts; none: all."""
    return [sys.executable, "-m", "hetplanner.planners.kernel_parts", *parts]


def begin_compiling(parts: Iterable[str] = ()) -> subprocess.Popen[bytes] | None:
    """A process that compiles these parts (none: all) and ends with this one at the latest; None: it does not start."""
    quiet = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            compiler(parts), stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )
    except OSError:
        return None


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)  # a compilation cannot be interrupted; numba's files are complete or absent


def main(parts: Iterable[str]) -> None:
    """Entry point of the process."""
    work_in_background()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    chosen = [part for part in parts if part in PARTS]
    with contextlib.suppress(BrokenPipeError):  # whoever started it is gone
        for part in compile_parts(chosen):
            print(json.dumps({"ready": part}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
