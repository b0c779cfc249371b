"""The status of a run that has no agent, from what its ranks wrote: started by torchrun, or on Kubernetes.

The folder may be put together from those of several hosts: no two of them write a file of one name.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from hetplanner.runs.reading.telemetry import RankTelemetry
from hetplanner.runs.status import RunStatus
from hetplanner.units import short_seconds

SILENT_S = 120.0
"""A rank that has written nothing for so long, in a run that is not done, is taken for lost."""


def status_of_ranks(folder: Path, ranks: Sequence[RankTelemetry], steps: int) -> RunStatus:
    """How a run stands, or ended.

    Args:
        folder: of the run, with `plan.json`.
        ranks: all of the plan's, read to their ends.
        steps: that were asked for.
    """
    written = {rank.rank: rank.path.stat().st_mtime for rank in ranks if rank.path.exists()}
    begun = [min(rank.phases.values()) for rank in ranks if rank.phases]
    created_s = min(begun, default=(folder / "plan.json").stat().st_mtime)
    status = RunStatus(
        run=folder.name[:120] or "run",
        state="running",
        created_unix_s=created_s,
        started_unix_s=created_s if begun else None,
        ranks=len(ranks),
        restarts=max(rank.attempt for rank in ranks),
    )
    ended_s = max(written.values(), default=created_s)
    for rank in ranks:
        if rank.error is not None:
            words = f"rank {rank.rank}: {rank.error.text}"[:2000]
            lines = tuple(line[:2000] for line in rank.error.traceback.splitlines()[-40:])
            end = {"failed_rank": rank.rank, "last_lines": lines, "ended_unix_s": ended_s}
            return status.replace(state="failed", message=words, **end)
    missing = [rank.rank for rank in ranks if rank.rank not in written]
    if missing and written:
        names = ", ".join(f"rank-{rank}.jsonl" for rank in missing[:4]) + (", …" if len(missing) > 4 else "")
        words = f"{names} {'is' if len(missing) == 1 else 'are'} not here; copy the files of all hosts into this folder"
        return status.replace(state="failed", message=words, ended_unix_s=ended_s)
    if all(rank.phase == "done" for rank in ranks):
        done = min(next(reversed(rank.steps), -1) for rank in ranks) + 1
        words = "" if done >= steps else f"after {done} of {steps} steps"
        return status.replace(state="finished" if done >= steps else "stopped", message=words, ended_unix_s=ended_s)
    quiet_s = time.time() - min(written.values(), default=created_s)
    if quiet_s > SILENT_S:
        words = f"lost: a rank wrote nothing for {short_seconds(quiet_s)}"
        return status.replace(state="failed", message=words, ended_unix_s=ended_s)
    return status.replace(message=next((rank.phase for rank in ranks if rank.phase), "starting"))
