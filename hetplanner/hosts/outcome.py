"""How an attempt over hosts ended, from what its hosts say: which of them is the cause, and what its head tells."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hetplanner.errors import InvalidInput, Preempted, RunError
from hetplanner.hosts.host_run import HostRun
from hetplanner.units import short_seconds

TOLD = (Preempted.exit_code, -15, -2)
"""Exit codes of ranks that were told to end."""


@dataclass(frozen=True)
class Outcome:
    """Exit code and last line of a head.

    Attributes:
        is_final: nothing that others may still say changes it.
    """

    code: int
    words: str
    is_final: bool = False

    @property
    def is_preemption(self) -> bool:
        """Whether ranks were told to end, and save."""
        return self.code == Preempted.exit_code


def find_outcome(runs: Sequence[HostRun], names: Sequence[str], lost_after_s: float, steady_s: float) -> Outcome | None:
    """What has gone wrong; None: nothing yet.

    Args:
        runs: of all hosts.
        names: device and host of every rank.
        lost_after_s: silence after which a host is given up.
        steady_s: without a break of any connection, before ranks that all stand are no more than waiting.
    """
    for run in runs:
        if (words := _why_gone(run, lost_after_s)) is not None:
            return Outcome(RunError.exit_code, words, is_final=True)
    for run in runs:
        if run.state is not None and run.state.lost is not None:
            return Outcome(RunError.exit_code, run.state.lost[1][:1800], is_final=True)
    failed = [run for run in runs if run.state is not None and run.state.ended and run.state.exit_code != 0]
    if failed:
        return _failure(failed, names)
    return _find_stall(runs, steady_s)


def find_swarm_outcome(runs: Sequence[HostRun], lost_after_s: float) -> Outcome | None:
    """How a swarm stands: its first host has the coordinator, the others may go and return. None: it goes on.

    Args:
        runs: of all hosts.
        lost_after_s: silence after which the first host is given up.
    """
    lead = runs[0]
    if (words := _why_gone(lead, lost_after_s)) is not None:
        return Outcome(RunError.exit_code, words, is_final=True)
    if lead.state is None or not lead.state.ended:
        return None
    code, said = lead.state.exit_code, lead.state.words
    if code == 0:
        return Outcome(0, "finished")
    words = said[-1] if said else f"its part of the swarm ended with exit code {code}"
    known = code if code in (Preempted.exit_code, InvalidInput.exit_code) else RunError.exit_code
    return Outcome(known or RunError.exit_code, f"host {lead.host.name}: {words}"[:1800])


def _why_gone(run: HostRun, lost_after_s: float) -> str | None:
    name = run.host.name
    if run.refused:
        return f"host {name}: {run.refused}"
    if not run.started or run.done:
        return None
    if run.unheard_s() > lost_after_s:
        return (
            f"host {name} is lost: it did not answer for {short_seconds(lost_after_s)}; all others are ended, and"
            " it ends what runs there by itself"
        )
    if not run.lives and not (run.state is not None and run.state.ended):
        why = f"it said: {run.said}" if run.said else "the machine was restarted, or it was killed"
        return f"host {name}: its node process has ended; {why}"
    return None


def _failure(failed: Sequence[HostRun], names: Sequence[str]) -> Outcome:
    """The worst of what ended launchers: a killed rank, one's own refusal, a bare exit code, being told to end."""
    codes = {rank: code for run in failed if run.state for rank, code in _codes(run)}
    killed = next((rank for rank, code in codes.items() if code < 0 and code not in TOLD), None)
    if killed is not None:
        return Outcome(RunError.exit_code, f"rank {killed} ({names[killed]}) was killed by signal {-codes[killed]}")
    for run in failed:
        if run.state and run.state.words and not all(code in TOLD for _, code in _codes(run)):
            return Outcome(RunError.exit_code, f"host {run.host.name}: {run.state.words[0]}"[:1800])
    if codes and all(code in TOLD or code == 0 for code in codes.values()):
        told = [rank for rank, code in codes.items() if code in TOLD]
        if told:
            words = f"rank {told[0]} ({names[told[0]]}) was told to end"
            return Outcome(Preempted.exit_code, words)
    bare = next((rank for rank, code in codes.items() if code not in (0, *TOLD)), None)
    if bare is not None:
        return Outcome(RunError.exit_code, f"rank {bare} ({names[bare]}) ended with exit code {codes[bare]}")
    first = failed[0]
    code = first.state.exit_code if first.state else None
    return Outcome(RunError.exit_code, f"host {first.host.name}: its launcher ended with exit code {code}")


def _codes(run: HostRun) -> Iterator[tuple[int, int]]:
    """Exit codes of a host's own ranks."""
    if run.state is not None:
        yield from ((rank, code) for rank, code in run.state.ranks.items() if rank in run.host.ranks)


def _find_stall(runs: Sequence[HostRun], steady_s: float) -> Outcome | None:
    """All ranks of all hosts stand, though the network was there all the time."""
    stands = [run.state.stands if run.state is not None else "" for run in runs]
    if not all(stands) or min(run.heard_s - run.since_s for run in runs) < steady_s:
        return None
    words = "; ".join(f"host {run.host.name}: {text}" for run, text in zip(runs, stands, strict=True))
    text = f"no rank gets on any more, and none is known to be at fault: {words}"
    return Outcome(RunError.exit_code, text[:1800], is_final=True)


def summary_lines(runs: Sequence[HostRun]) -> list[str]:
    """Exit codes of ranks in the form of torchrun's own summary, which the agent's diagnosis reads."""
    rows = [(rank, code, run.host) for run in runs for rank, code in _codes(run) if code != 0]
    if not rows:
        return []
    rows.sort(key=lambda row: (row[1] >= 0 or row[1] in TOLD, row[0]))
    lines = ["Failures:"]
    for i, (rank, code, host) in enumerate([*rows[1:], rows[0]]):
        if i == len(rows) - 1:
            lines.append("Root Cause (first observed failure):")
        local = host.ranks.index(rank)
        lines += [f"  host      : {host.name}", f"  rank      : {rank} (local_rank: {local})", f"  exitcode  : {code} "]
    return lines
