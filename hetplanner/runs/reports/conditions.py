"""What a run goes on without: facts about its disk, memory and links, as sentences for a person.

`conditions` is a pure function of facts; `Conditions` gathers them for one run, as its agent ticks. Who watches
something else (ranks that are silent, say) adds sentences of their own to `Conditions.others`.
"""

import errno
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hetplanner.launchers.capacity import memory
from hetplanner.launchers.disk import state_bytes
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.train import TrainConfig
from hetplanner.reading import DAMAGED
from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.runs.reading.tail import LineTail
from hetplanner.runs.reports.swarm_conditions import swarm_words
from hetplanner.units import short_bytes, short_seconds

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
FULL_BYTES = 2**20
"""A disk with less free space is full: telemetry alone takes as much in seconds."""
LEAST_MEMORY_SHARE = 0.05
LATE_SHARE = 0.05
"""Deliveries of the emulator that may be late before the step times are no longer to be believed."""
LATE_WINDOW_S = 10.0
_NO_SPACE = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO))
_TAIL_BYTES = 4 * 2**20
_LINKS_PREFIX = b'{"type": "links"'


@dataclass(frozen=True)
class DiskFacts:
    """The disk of a run's folder, in bytes; `needed`: what it writes at once (a checkpoint, the model)."""

    folder: Path
    free: int
    total: int
    needed: int
    has_inodes: bool = True


@dataclass(frozen=True)
class MemoryFacts:
    """This machine's main memory, in bytes."""

    free: int
    total: int


@dataclass(frozen=True)
class LinkFacts:
    """Deliveries of emulated links in the last seconds: how many, how many of them late, by how much in all."""

    deliveries: int
    late: int
    late_s: float


def conditions(disk: DiskFacts | None, free_memory: MemoryFacts | None, links: LinkFacts | None) -> tuple[str, ...]:
    """A sentence for everything that is not as it should be; with the remedy."""
    found = (
        disk and disk_words(disk),
        free_memory and _memory_words(free_memory),
        links and _link_words(links),
    )
    return tuple(words for words in found if words)


def disk_words(disk: DiskFacts) -> str:
    """What is wrong with a disk; empty where nothing is. Free bytes are rounded, so that the words rest."""
    free = f"{short_bytes(float(f'{disk.free:.1g}'))} of {short_bytes(disk.total)} free"
    if not disk.has_inodes:
        return f"the disk of {disk.folder} takes no more files (no inodes left): remove some files"
    if disk.free < min(FULL_BYTES, disk.needed):
        return (
            f"the disk of {disk.folder} is full ({free}): checkpoints, telemetry and the model wait for space;"
            f" free {short_bytes(disk.needed)}"
        )
    if disk.free < disk.needed:
        return (
            f"the disk of {disk.folder} is nearly full ({free}): the next checkpoint or the model takes"
            f" {short_bytes(disk.needed)}; free {short_bytes(float(f'{disk.needed - disk.free:.2g}'))}"
        )
    return ""


def _memory_words(found: MemoryFacts) -> str:
    if found.free >= LEAST_MEMORY_SHARE * found.total:
        return ""
    free = short_bytes(float(f"{found.free:.1g}"))
    return (
        f"memory is nearly exhausted ({free} of {short_bytes(found.total)} free): the system may kill a rank; end"
        " other programs"
    )


def _link_words(links: LinkFacts) -> str:
    if not links.deliveries or links.late < LATE_SHARE * links.deliveries:
        return ""
    share = round(100 * links.late / links.deliveries, -1 if links.late > 0.1 * links.deliveries else 0)
    mean = short_seconds(float(f"{links.late_s / links.late:.1g}"))
    return (
        f"emulated links are late ({share:.0f} % of the deliveries, by {mean} on average): this machine is too busy,"
        " so steps take longer than the cluster's would; end other programs"
    )


def disk_facts(folder: Path, needed: int = 0) -> DiskFacts | None:
    """The disk of a folder now; None where it cannot be asked."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    return DiskFacts(folder, free, total, max(needed, FULL_BYTES), found.f_files == 0 or found.f_favail > 0)


class Conditions:
    """Gathers what one run goes on without, once a second at most.

    Args:
        folder: of the run.
        plan, config: of the run: how much it writes at once, whether its links are emulated.
        num_ranks: whose telemetry tells of late deliveries.
        timer: seconds that never jump.
        remote: its ranks are on other machines: their memory and checkpoints are not this one's.

    Attributes:
        others: sentences of who watches something else; replaced by them, told behind the rest.
    """

    def __init__(
        self,
        folder: Path,
        plan: AnyPlan,
        config: TrainConfig,
        num_ranks: int,
        timer: Callable[[], float] = time.monotonic,
        *,
        remote: bool = False,
    ) -> None:
        self.others: tuple[str, ...] = ()
        self._folder, self._timer, self._remote = folder, timer, remote
        checkpoint, model, parts = state_bytes(plan, config)
        self._needed = max(0 if remote else checkpoint, model + parts)
        names = [f"rank-{rank}.jsonl" for rank in range(num_ranks)] if config.emulate_links else []
        self._tails = [LineTail(folder / name) for name in names]
        self._links: deque[tuple[float, int, int, float]] = deque()
        self._swarm = SwarmHistory(folder) if isinstance(plan, ElasticPlan) else None
        self._looked_s, self._found = float("-inf"), tuple[str, ...]()

    def look(self) -> tuple[str, ...]:
        """The sentences now."""
        now = self._timer()
        if now - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now
            disk = disk_facts(self._folder, self._needed)
            free_memory = None if self._remote else MemoryFacts(*memory())
            self._found = conditions(disk, free_memory, self._late_links(now)) + self._of_the_swarm()
        return (*self._found, *self.others)

    def _of_the_swarm(self) -> tuple[str, ...]:
        if self._swarm is None:
            return ()
        self._swarm.poll()
        return swarm_words(self._swarm, time.time())

    def _late_links(self, now: float) -> LinkFacts | None:
        if not self._tails:
            return None
        for tail in self._tails:
            for line in tail.lines(_TAIL_BYTES):
                if line.startswith(_LINKS_PREFIX):
                    self._links.append((now, *_late_in(line)))
        while self._links and self._links[0][0] < now - LATE_WINDOW_S:
            self._links.popleft()
        columns = list(zip(*self._links, strict=True)) or [(), (), (), ()]
        return LinkFacts(sum(columns[1]), sum(columns[2]), sum(columns[3]))


def _late_in(line: bytes) -> tuple[int, int, float]:
    """Deliveries, late ones and their seconds in a line about links; nothing in a damaged one."""
    try:
        rows = json.loads(line)["links"]
        return (
            sum(int(row["taken"]) for row in rows),
            sum(int(row["late"]) for row in rows),
            sum(float(row["late_s"]) for row in rows),
        )
    except DAMAGED:
        return 0, 0, 0.0


def with_full_disk(message: str, folder: Path) -> str:
    """Why a run failed, and that its disk is full or was, with what to do."""
    disk = disk_facts(folder)
    is_full = disk is not None and (disk.free < FULL_BYTES or not disk.has_inodes)
    if disk is None or not (is_full or any(words in message for words in _NO_SPACE)):
        return message
    now = "is full" if is_full else "was full"
    free = f"{short_bytes(disk.free)} of {short_bytes(disk.total)} free now"
    return (
        f"{message[:3000]}; the disk of {folder} {now} ({free}):"
        " free space, then go on from the last checkpoint with `hetplanner train PLAN --resume RUN`"
    )
