"""Spans of steps that lie far back: found in a rank's file by halving, so that no reader has to keep them all."""

import re
from pathlib import Path
from typing import BinaryIO

_SPAN_STEP = re.compile(rb'^\{"type": ?"span".*?"step": ?(\d+)[,}]')
_BLOCK = 256 * 1024
_NEAR = 64 * 1024
MAX_SCANNED = 8 * 2**20
"""Bytes read backwards for one look."""


def span_lines(path: Path, last_step: int, count: int) -> list[bytes]:
    """Lines of the spans of the last `count` steps up to `last_step` that left any, in their order in the file.

    Steps ascend in a file but for those that were done again after a restart; near such a place the answer may be
    incomplete.

    Args:
        path: a rank's telemetry; a missing one has no spans.
        last_step: the latest step wanted.
        count: how many steps.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            return _backwards(file, _end_of(file, size, last_step), last_step, count)
    except OSError:
        return []


def step_of(line: bytes) -> int | None:
    """The step of a span's line; None for any other line."""
    found = _SPAN_STEP.match(line[:400])
    return int(found[1]) if found else None


def _end_of(file: BinaryIO, size: int, last_step: int) -> int:
    """A place in the file behind all spans of `last_step`."""
    low, high = 0, size
    while high - low > _NEAR:
        middle = (low + high) // 2
        file.seek(middle)
        steps = [step for line in file.read(_NEAR).split(b"\n")[1:-1] if (step := step_of(line)) is not None]
        # A step's spans may stand a little behind the first one of the next.
        if steps and min(steps) > last_step + 1:
            high = middle
        else:
            low = middle
    return min(size, high + _NEAR)


def _backwards(file: BinaryIO, end: int, last_step: int, count: int) -> list[bytes]:
    found: list[tuple[int, bytes]] = []
    rest, begin = b"", end
    while begin > 0 and end - begin < MAX_SCANNED:
        until, begin = begin, max(0, begin - _BLOCK)
        file.seek(begin)
        block = file.read(until - begin) + rest
        head, *lines = block.split(b"\n")
        if begin == 0:
            lines, head = [head, *lines], b""
        numbered = [(step, line) for line in lines if (step := step_of(line)) is not None and step <= last_step]
        found = numbered + found
        rest = head
        if len({step for step, _ in found}) > count + 1:
            break
    chosen = set(sorted({step for step, _ in found})[-count:])
    return [line for step, line in found if step in chosen]
