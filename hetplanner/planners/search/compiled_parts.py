"""Which parts of the planners' kernels are compiled: marked on disk, for each kind of processor.

`hetplanner.planners.search.kernel_parts` compiles them, in a process of its own.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PARTS = {
    "step": "placements of equal stages",
    "ragged": "stages of unlike size",
    "dtfm": "the DT-FM objective",
    "front": "step time against dollars",
    "small": "problems small enough to try whole",
    "published": "DT-FM's own search",
}
"""Name -> what it is for, in words; the default search's come first."""
FOREGROUND = "--foreground"
"""Option of the compiler: at normal priority."""


def is_ready(parts: Iterable[str]) -> bool | None:
    """Whether these parts are compiled; None where that is not kept."""
    from hetplanner.kernels import kernel_folder

    folder = kernel_folder()
    return None if folder is None else all(mark_of(folder, part).exists() for part in parts)


def missing_parts() -> list[str]:
    """Names of the parts that are not compiled; none where that is not kept."""
    return [part for part in PARTS if is_ready([part]) is False]


def mark_of(folder: Path, part: str) -> Path:
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
    return [sys.executable, "-m", "hetplanner.planners.search.kernel_parts", *parts]


def begin_compiling(parts: Iterable[str] = (), *, in_foreground: bool = False) -> subprocess.Popen[bytes] | None:
    """A process that compiles these parts (none: all) and ends with this one at the latest; None: it does not start.

    It works at low priority, or in the foreground for a search that waits.
    """
    command, quiet = [*compiler(parts), *[FOREGROUND] * in_foreground], subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
    except OSError:
        return None
