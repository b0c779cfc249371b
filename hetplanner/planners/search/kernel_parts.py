"""Compiles the planners' kernels in parts, each by a small search that needs it.

`python -m hetplanner.planners.search.kernel_parts [PART ...]` compiles what is missing and says after each part, as a
line of JSON, how many are ready. Several such processes share the work: each part has a lock. It ends when stdin
closes, which is when its parent process ends. It works at low priority, unless `--foreground` is given.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hetplanner.liveness.priority import work_in_background
from hetplanner.planners.search.compiled_parts import FOREGROUND, mark_of

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
    from hetplanner.planners.step_time.fronts import search_front
    from hetplanner.workload.presets import preset

    task = Problem(cluster=mixed_gpus(0, num_devices=DEVICES), workload=preset("tiny-gpt"))
    search_front(task, budget=Budget(evaluations=TRIED))


COMPILE: dict[str, Callable[[], None]] = {
    "step": lambda: _search("evolution", "step-time", chain=100),
    "ragged": lambda: _search("evolution", "step-time", shape=None, chain=100),
    "dtfm": lambda: _search("evolution", "dtfm", chain=100),
    "front": _front,
    "small": lambda: _search("exhaustive", "step-time", shape=(2, 1)),
    "published": lambda: _search("gcma", "dtfm", trials=5),
}
"""What compiles each of `PARTS`: a small search that needs it."""


def compile_parts(parts: Iterable[str] = ()) -> Iterator[str]:
    """Compiles what is missing of these parts (none: of all); yields the name of each that is done.

    Where another process compiles a part, the others come first.
    """
    chosen = list(parts) or list(COMPILE)
    from hetplanner.kernels import kernel_folder

    folder = kernel_folder()
    waiting = [part for part in chosen if folder is None or not mark_of(folder, part).exists()]
    yield from (part for part in chosen if part not in waiting)
    for wait in (False, True):
        for part in list(waiting):
            if _compile(part, folder, wait=wait):
                waiting.remove(part)
                yield part


def _compile(part: str, folder: Path | None, *, wait: bool) -> bool:
    """Whether the part is compiled now; not where another process is about it and is not waited for."""
    if folder is None:
        COMPILE[part]()
        return True
    with (folder / f"{part}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        mark = mark_of(folder, part)
        if not mark.exists():
            COMPILE[part]()
            mark.touch()
    return True


def _end_with_stdin() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):  # not through a buffer: its lock would abort an ordinary end
            pass
    os._exit(0)  # a compilation cannot be interrupted; numba's files are complete or absent


def main(arguments: Sequence[str]) -> None:
    """Entry point of the process."""
    if FOREGROUND not in arguments:
        work_in_background()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    chosen = [part for part in arguments if part in COMPILE]
    with contextlib.suppress(BrokenPipeError):  # its parent process has ended
        for part in compile_parts(chosen):
            print(json.dumps({"ready": part}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
