"""What was asked of the peers of a run: written by who owns the run, done by the process that started the peers.

A file of lines in the run's folder. Lines of an earlier start of the run are not for the processes of this one. Of a
swarm over hosts the head writes each host's lines there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from hetplanner.line_files import append_line
from hetplanner.reading import DAMAGED

PeerAct = Literal["drain", "kill", "rejoin"]
"""Leave between two steps once its stage has another peer; end at once, as a machine without power does; or come back
after either."""
ASKED_FILE = "asked.jsonl"
MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class PeerOrder:
    """One peer is to go, or to come back; `attempt` counts the starts of the run, from 0."""

    peer: str
    act: PeerAct
    attempt: int = 0


def ask(run_dir: Path, asked: PeerOrder) -> None:
    """Adds a line. Raises OSError."""
    append_line(run_dir / ASKED_FILE, _line(asked))


def orders_text(asked: Sequence[PeerOrder]) -> bytes:
    """The file's content."""
    return b"".join(_line(one) + b"\n" for one in asked)


def orders_so_far(run_dir: Path, attempt: int = 0) -> list[PeerOrder]:
    """What was asked of this start's peers, oldest first; lines that say nothing of the kind are passed over."""
    try:
        with (run_dir / ASKED_FILE).open("rb") as file:
            lines = file.read(MAX_BYTES).split(b"\n")[:-1]
    except OSError:
        return []
    found = [_parsed(line) for line in lines]
    return [asked for asked in found if asked is not None and asked.attempt == attempt]


def _line(asked: PeerOrder) -> bytes:
    return json.dumps(asdict(asked)).encode()


def _parsed(line: bytes) -> PeerOrder | None:
    try:
        fields = json.loads(line)
        asked = PeerOrder(str(fields["peer"]), fields["act"], int(fields["attempt"]))
    except DAMAGED:
        return None
    return asked if asked.act in get_args(PeerAct) else None
