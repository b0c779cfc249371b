"""Why a run failed: which rank died first, of what, and its last words.

When one rank dies its peers lose their connections within milliseconds and fail too, so what each left behind
is weighed: a signal first, then an error of its own, a bare exit code, and the echo of a lost connection last.
"""

import json
import re
import signal
from dataclasses import dataclass

from hetplanner.reading import DAMAGED
from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.status import MAX_LAST_LINES
from hetplanner.runs.tail import last_lines, text_from

_FAILURE = re.compile(r"^\s*(?:\S+\])?\s*rank\s*: (\d+) \(local_rank: \d+\)\s*$")
_EXIT_CODE = re.compile(r"^\s*(?:\S+\])?\s*exitcode\s*: (-?\d+) ")
_ECHO = re.compile(r"connection (closed|reset|refused)|broken pipe|peer closed|timed out|timeout|socket", re.IGNORECASE)
OWN_ERROR = 3
NUM_LAST_LINES = 20
_TAIL_BYTES = 256 * 1024
_ENDED_BY_LAUNCHER = (-signal.SIGTERM, -signal.SIGINT)


@dataclass(frozen=True)
class Diagnosis:
    """Who failed (None: the launcher, before any rank) and how, in a line; then the last lines it wrote.

    `would_repeat`: the rank ended by an error of its own, which the same work meets again (bad data, a loss that is
    no number); a rank that was killed or has lost a peer may go on.
    """

    failed_rank: int | None
    message: str
    last_lines: tuple[str, ...]
    would_repeat: bool = True


@dataclass(frozen=True)
class _Symptom:
    weight: int
    rank: int
    text: str


def diagnose(directory: RunDirectory, labels: tuple[str, ...], exit_code: int | None) -> Diagnosis:
    """Looks through what the ranks and the launcher left in a run directory.

    Args:
        directory: the run's.
        labels: device of every rank.
        exit_code: of the launcher, negative for a signal; None where nobody saw it.
    """
    exits = launcher_exit_codes(directory)
    symptoms = [s for rank in range(len(labels)) if (s := _symptom(directory, rank, exits.get(rank)))]
    if not symptoms:
        lines = last_lines(directory.launcher_log, NUM_LAST_LINES)
        return Diagnosis(None, f"the launcher {_how_it_ended(exit_code)}", tuple(lines))
    first_reported = next(iter(exits), None)
    worst = max(symptoms, key=lambda s: (s.weight, s.rank == first_reported, -s.rank))
    lines = last_lines(directory.log_file(worst.rank), NUM_LAST_LINES)
    if not lines:
        lines = last_error(directory, worst.rank)[1].splitlines()[-NUM_LAST_LINES:]
    return Diagnosis(
        worst.rank,
        f"rank {worst.rank} ({labels[worst.rank]}) {worst.text}"[:2000],
        tuple(line[:400] for line in (lines or [worst.text])[-MAX_LAST_LINES:]),
        would_repeat=worst.weight == OWN_ERROR,
    )


def _symptom(directory: RunDirectory, rank: int, exit_code: int | None) -> _Symptom | None:
    text, _ = last_error(directory, rank)
    if exit_code is not None and exit_code < 0 and exit_code not in _ENDED_BY_LAUNCHER:
        return _Symptom(4, rank, f"was {_how_it_ended(exit_code)}")
    if text:
        return _Symptom(1 if _ECHO.search(text) else OWN_ERROR, rank, f"failed: {text}")
    if exit_code is not None and exit_code != 0:
        return _Symptom(0 if exit_code in _ENDED_BY_LAUNCHER else 2, rank, _how_it_ended(exit_code))
    return None


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "ended while no agent was watching"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (somebody's kill, or the machine ran out of memory)" if exit_code == -signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def launcher_exit_codes(directory: RunDirectory) -> dict[int, int]:
    """Exit code by rank from torchrun's failure summary; the rank that it saw fail first comes first."""
    text, _ = text_from(directory.launcher_log, -1, _TAIL_BYTES)
    failures, marker, root = text.rpartition("Root Cause (first observed failure)")
    root_codes = _exit_codes_in(root) if marker else {}
    return root_codes | {r: c for r, c in _exit_codes_in(failures).items() if r not in root_codes}


def _exit_codes_in(text: str) -> dict[int, int]:
    codes: dict[int, int] = {}
    rank: int | None = None
    for line in text.splitlines():
        if found := _FAILURE.match(line):
            rank = int(found[1])
        elif rank is not None and (found := _EXIT_CODE.match(line)):
            codes.setdefault(rank, int(found[1]))
            rank = None
    return codes


def last_error(directory: RunDirectory, rank: int) -> tuple[str, str]:
    """Text and traceback of the error line that a worker wrote before it died; empty where there is none.

    Of a run that was started again only the last attempt counts.
    """
    text, _ = text_from(directory.telemetry_file(rank), -1, _TAIL_BYTES)
    for line in text.rpartition('{"type": "restart"')[2].splitlines():
        if '"error"' not in line[:20]:
            continue
        try:
            record = json.loads(line)
            return str(record["text"]).strip()[:1000], str(record.get("traceback", ""))
        except DAMAGED:
            continue
    return "", ""
