"""What a swarm goes on without, as coordinator and launcher tell it: stages that no peer serves, lost processes."""

from hetplanner.runs.reading.swarm_history import SwarmHistory

PAUSED_S = 3.0
"""A pause this short is no news: a peer that joins, or comes back, takes as long."""
MAX_NAMED = 4


def swarm_words(history: SwarmHistory, now_unix_s: float) -> tuple[str, ...]:
    """A sentence for everything that is not as it should be; with the remedy."""
    found = []
    if history.is_over:
        return ()
    if history.paused and now_unix_s - history.pauses[-1].start_s > PAUSED_S:
        found.append(
            f"no peer serves stage {history.pauses[-1].stage}: the swarm waits for a peer that holds its state, or for"
            " enough peers to go back to a checkpoint; `hetplanner peer join RUN` brings one"
        )
    lost = history.ended
    if lost:
        names = ", ".join(sorted(lost)[:MAX_NAMED]) + (", …" if len(lost) > MAX_NAMED else "")
        found.append(f"processes that ended and are not started again: {names}; raise --max-restarts next time")
    return tuple(found)
