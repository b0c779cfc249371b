"""Why a run failed: which rank died first, of what, and its last words.

When one rank dies its peers lose their connections within milliseconds and fail too, so what each left behind
is weighed: a signal first, then an error of its own, a bare exit code, and the echo of a lost connection last.
"""

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from hetplanner.errors import InvalidInput, Preempted, RunError
from hetplanner.reading import DAMAGED
from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.reading.tail import last_lines, text_from
from hetplanner.runs.status import MAX_LAST_LINES

_FAILURE = re.compile(r"^\s*(?:\S+\])?\s*rank\s*: (\d+) \(local_rank: \d+\)\s*$")
_EXIT_CODE = re.compile(r"^\s*(?:\S+\])?\s*exitcode\s*: (-?\d+) ")
_NAMED = re.compile(r"rank (\d{1,6}) \(")
_ECHO = re.compile(r"connection (closed|reset|refused)|broken pipe|peer closed|timed out|timeout|socket", re.IGNORECASE)
TOLD, ECHO, BARE_CODE, OWN_ERROR, KILLED = range(5)
"""Weights of what is found; the greatest is the cause."""
NUM_LAST_LINES = 20
_TAIL_BYTES = 256 * 1024
OWN_CODES = (InvalidInput.exit_code, RunError.exit_code, Preempted.exit_code)
TOLD_TO_END = (-signal.SIGTERM, -signal.SIGINT, Preempted.exit_code)


@dataclass(frozen=True)
class Diagnosis:
    """The rank that failed (None: the launcher, before any rank) and how, in a line; then the last lines it wrote.

    `would_repeat`: the rank ended by an error of its own, which the same work meets again (bad data, a loss that is
    no number), or the launcher could start none; a rank that was killed or has lost a peer may go on.
    `told`: no rank failed by itself or was killed, and one was told to end.
    """

    failed_rank: int | None
    message: str
    last_lines: tuple[str, ...]
    would_repeat: bool = False
    told: bool = False


@dataclass(frozen=True)
class _Symptom:
    weight: int
    rank: int
    text: str


def diagnose(
    directory: RunDirectory,
    labels: tuple[str, ...],
    exit_code: int | None,
    ended: Mapping[int, int] | None = None,
    oom: str = "",
) -> Diagnosis:
    """Looks through what the ranks and the launcher left in a run directory.

    Args:
        directory: the run's.
        labels: device of every rank.
        exit_code: of the launcher, negative for a signal; None where it was not seen.
        ended: exit codes by rank, as the ranks themselves told.
        oom: what the kernel tells of processes that it ended meanwhile for lack of memory.
    """
    exits = launcher_exit_codes(directory)
    exits |= {rank: code for rank, code in (ended or {}).items() if rank not in exits}
    symptoms = [s for rank in range(len(labels)) if (s := _symptom(directory, rank, exits.get(rank), oom))]
    told = exit_code in TOLD_TO_END or any(code in TOLD_TO_END for code in exits.values())
    worst = max(symptoms, key=lambda s: (s.weight, s.rank == next(iter(exits), None), -s.rank), default=None)
    is_told_by_launcher = exit_code in OWN_CODES and worst is not None and worst.weight <= BARE_CODE
    if worst is None or is_told_by_launcher or (worst.weight <= TOLD and exit_code is not None and exit_code < 0):
        lines = last_lines(directory.launcher_log, NUM_LAST_LINES)
        began = any(directory.telemetry_file(rank).exists() for rank in range(len(labels)))
        would_repeat = not began and exit_code is not None and exit_code > 0 and not told
        would_repeat |= exit_code == InvalidInput.exit_code
        if exit_code in OWN_CODES and lines:  # a launcher of ours says why in its last line
            told = exit_code == Preempted.exit_code
            return Diagnosis(_rank_in(lines[-1], len(labels)), lines[-1][:2000], tuple(lines), would_repeat, told)
        was = "was " if exit_code is not None and exit_code < 0 else ""
        return Diagnosis(None, f"the launcher {was}{_how_it_ended(exit_code, oom)}", tuple(lines), would_repeat, told)
    lines = last_lines(directory.log_file(worst.rank), NUM_LAST_LINES)
    if not lines:
        lines = last_error(directory, worst.rank)[1].splitlines()[-NUM_LAST_LINES:]
    return Diagnosis(
        worst.rank,
        f"rank {worst.rank} ({labels[worst.rank]}) {worst.text}"[:2000],
        tuple(line[:400] for line in (lines or [worst.text])[-MAX_LAST_LINES:]),
        would_repeat=worst.weight == OWN_ERROR,
        told=told and worst.weight <= ECHO,
    )


def _rank_in(words: str, num_ranks: int) -> int | None:
    """The rank that a launcher's last line begins with."""
    found = _NAMED.match(words)
    return int(found[1]) if found and int(found[1]) < num_ranks else None


def _symptom(directory: RunDirectory, rank: int, exit_code: int | None, oom: str) -> _Symptom | None:
    text, _ = last_error(directory, rank)
    if exit_code is not None and exit_code < 0 and exit_code not in TOLD_TO_END:
        return _Symptom(KILLED, rank, f"was {_how_it_ended(exit_code, oom)}")
    if text:
        return _Symptom(ECHO if _ECHO.search(text) else OWN_ERROR, rank, f"failed: {text}")
    if exit_code is not None and exit_code != 0:
        return _Symptom(TOLD if exit_code in TOLD_TO_END else BARE_CODE, rank, _how_it_ended(exit_code, oom))
    return None


def _how_it_ended(exit_code: int | None, oom: str = "") -> str:
    if exit_code is None:
        return "ended while no agent was watching"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    if exit_code != -signal.SIGKILL:
        return f"killed by {name}"
    return f"killed by {name}" + (f" (the kernel was short of memory: {oom})" if oom else "; the sender is not known")


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
