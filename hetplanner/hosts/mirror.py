"""The head's copies of a host's files: which ones there can be follows from the plan, and nothing else is taken."""

import contextlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput, RunError
from hetplanner.hosts.on_host.sending import GROWS, LINES, MANIFESTS, TORCHRUN_LOG, WHOLE
from hetplanner.launchers.disk import disk_need
from hetplanner.launchers.hosts_file import PlacedHost
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.checkpoints import MAX_MANIFEST_BYTES, prune
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.placement import stages_on_host
from hetplanner.plan.train import TrainConfig
from hetplanner.reading import DAMAGED
from hetplanner.schema import parse_json, read_text

STATES_FILE = "hosts.json"
"""What is known of the hosts, for the agent and for readers of clocks."""
EVENTS_FILE, PROCESSES_FILE = "events.jsonl", "processes.jsonl"
"""Of a swarm, as `runs.swarm_history` names them."""
OF_RANK_0 = ("prediction.json", "links.json", "cluster-measured.json", "model.json")
SMALL_BYTES = 64 * 2**20
"""Most bytes of one of those."""
LOG_BYTES = 64 * 2**20
SLACK, SLACK_BYTES = 4, 256 * 2**20
"""Of what telemetry is estimated to take."""
MODEL_SLACK = 1.5
_MANIFEST = re.compile(r"checkpoints/step-[0-9]{8,12}/manifest\.json")


@dataclass(frozen=True)
class Wanted:
    """A file that a host may have.

    Attributes:
        name: on the host.
        kind: how it comes to be, see `sending`.
        most: bytes that are taken.
        here: its name on the head.
    """

    name: str
    kind: str
    most: int
    here: str


def wanted_files(plan: AnyPlan, config: TrainConfig, host: PlacedHost) -> tuple[Wanted, ...]:
    """Everything that may come back from a host."""
    need = disk_need(plan, config)
    telemetry = SLACK * need.telemetry + SLACK_BYTES
    if isinstance(plan, ElasticPlan):
        return _wanted_of_swarm(host, telemetry, int(MODEL_SLACK * need.model) + SLACK_BYTES)
    found = [Wanted(f"rank-{rank}.jsonl", LINES, telemetry, f"rank-{rank}.jsonl") for rank in host.ranks]
    found += [Wanted(f"log-{rank}.txt", GROWS, LOG_BYTES, f"log-{rank}.txt") for rank in host.ranks]
    found.append(Wanted(TORCHRUN_LOG, GROWS, LOG_BYTES, host_log(host.node)))
    model = int(MODEL_SLACK * need.model) + SLACK_BYTES
    whole = {f"model-stage-{stage}.safetensors": model for stage in sorted(stages_on_host(plan, host.ranks))}
    if 0 in host.ranks:
        whole |= dict.fromkeys(OF_RANK_0, SMALL_BYTES) | {"model.safetensors": model}
        found.append(Wanted(MANIFESTS, WHOLE, MAX_MANIFEST_BYTES, ""))
    return (*found, *(Wanted(name, WHOLE, most, name) for name, most in whole.items()))


def _wanted_of_swarm(host: PlacedHost, telemetry: int, model: int) -> tuple[Wanted, ...]:
    """What its processes said; from the coordinator's host the run's telemetry, events and model too."""
    log = Wanted(TORCHRUN_LOG, GROWS, LOG_BYTES, host_log(host.node))
    if host.node != 0:
        return (log, Wanted(PROCESSES_FILE, LINES, telemetry, f"processes-{host.node}.jsonl"))
    lines = [Wanted(name, LINES, telemetry, name) for name in ("rank-0.jsonl", EVENTS_FILE, PROCESSES_FILE)]
    whole = [Wanted("model.json", WHOLE, SMALL_BYTES, "model.json")]
    whole += [Wanted("model.safetensors", WHOLE, model, "model.safetensors")]
    return (log, *lines, Wanted("log-0.txt", GROWS, LOG_BYTES, "log-0.txt"), *whole)


def host_log(node: int) -> str:
    """Name of the head's copy of a host's torchrun log."""
    return f"host-{node}.txt"


class Mirror:
    """Writes a host's files into the run directory.

    Args:
        run_dir: of the head.
        wanted: what may come.
        kept: checkpoints whose manifests stay.
        lost: by file, bytes that the head has and the host lost with its machine.

    Attributes:
        bytes: taken so far.
        full: files that have reached the most that is taken.
    """

    def __init__(self, run_dir: Path, wanted: tuple[Wanted, ...], kept: int, lost: dict[str, int]) -> None:
        self._run_dir, self._kept = run_dir, kept
        self._wanted = {one.name: one for one in wanted}
        self.lost = lost
        self.bytes = 0
        self.full: set[str] = set()
        self._marks: dict[str, Any] = {}
        self._drafts: dict[str, tuple[Path, list[int]]] = {}

    def rows(self) -> list[list[Any]]:
        """What to ask a host for: name, kind, what is here already, and the most that is taken."""
        self._drop_drafts()
        return [[one.name, one.kind, self._has(one), one.most] for one in self._wanted.values()]

    def _has(self, one: Wanted) -> Any:
        if one.name == MANIFESTS:
            return {name: mark for name, mark in self._marks.items() if _MANIFEST.fullmatch(name)}
        if one.kind == WHOLE:
            return self._marks.get(one.name)
        return self._size(one) - self.lost.get(one.name, 0)

    def _size(self, one: Wanted) -> int:
        try:
            return (self._run_dir / one.here).stat().st_size
        except OSError:
            return 0

    def take(self, header: dict[str, Any], piece: bytes) -> None:
        """Writes a piece of a file. Raises RunError (no file of ours, or not the next piece), OSError (disk)."""
        name, at = header.get("file"), header.get("at")
        one = self._wanted.get(str(name))
        if one is None and isinstance(name, str) and MANIFESTS in self._wanted and _MANIFEST.fullmatch(name):
            one = Wanted(name, WHOLE, MAX_MANIFEST_BYTES, name)
        if one is None or not isinstance(at, int) or isinstance(at, bool) or at < 0:
            raise RunError(f"sends a file that was not asked for: {name!r:.80}")
        if one.kind == WHOLE:
            self._take_whole(one, at, header.get("mark"), piece)
        else:
            self._append(one, at, piece, is_lost=bool(header.get("lost")))
        self.bytes += len(piece)

    def _append(self, one: Wanted, at: int, piece: bytes, *, is_lost: bool) -> None:
        if one.name in self.full:
            return
        path, size = self._run_dir / one.here, self._size(one)
        if is_lost and at <= size:
            self.lost[one.name] = size - at
            return
        if at + self.lost.get(one.name, 0) != size:
            raise RunError(f"{one.name}: comes from byte {at}, {size} are here")
        if size + len(piece) > one.most:
            self.full.add(one.name)
            return
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            written = os.write(file, piece)
            while written < len(piece):
                written += os.write(file, piece[written:])
        finally:
            os.close(file)

    def _take_whole(self, one: Wanted, at: int, mark: Any, piece: bytes) -> None:
        is_mark = isinstance(mark, list) and len(mark) == 2 and all(type(n) is int and n >= 0 for n in mark)
        if not is_mark or mark[0] > one.most or at + len(piece) > mark[0]:
            raise RunError(f"{one.name}: must have at most {one.most} bytes, got {mark!r:.60}")
        if at == 0:
            self._drop_draft(one.name)
            path = self._run_dir / one.here
            path.parent.mkdir(parents=True, exist_ok=True)
            self._drafts[one.name] = path.with_name(f".{secrets.token_hex(8)}.draft"), mark
        draft, known = self._drafts.get(one.name, (None, None))
        if draft is None or known != mark:
            return  # it was written anew meanwhile, and comes again from its beginning
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(draft, flags, 0o600)
        try:
            os.pwrite(file, piece, at)
        finally:
            os.close(file)
        if at + len(piece) == mark[0]:
            self._finish(one, draft, mark)

    def _finish(self, one: Wanted, draft: Path, mark: list[int]) -> None:
        draft.replace(self._run_dir / one.here)
        del self._drafts[one.name]
        self._marks[one.name] = mark
        if _MANIFEST.fullmatch(one.name):
            prune(self._run_dir, self._kept)

    def _drop_drafts(self) -> None:
        for name in list(self._drafts):
            self._drop_draft(name)

    def _drop_draft(self, name: str) -> None:
        draft, _ = self._drafts.pop(name, (None, None))
        if draft is not None:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def lost_before(run_dir: Path) -> dict[str, dict[str, int]]:
    """By host and file, bytes that an earlier attempt's head had and the host has lost."""
    try:
        hosts = parse_json(read_text(run_dir / STATES_FILE), STATES_FILE)["hosts"]
        return {name: {k: int(v) for k, v in state["lost_bytes"].items()} for name, state in hosts.items()}
    except (InvalidInput, *DAMAGED):
        return {}
