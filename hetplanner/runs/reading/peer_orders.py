"""What follows from an order to a peer of a swarm, in words, as far as its coordinator has told who serves what."""

from __future__ import annotations

from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.swarm.launch.requests import PeerAct

REMEDY = "have another one join (hetplanner peer join) or come back (hetplanner runs rejoin)"


def what_follows(act: PeerAct, peer: str, history: SwarmHistory) -> str:
    """What the peer does now, such as 'leaves between two steps'; the last peer of a stage does not leave it."""
    if act == "rejoin":
        return f"{peer} comes back"
    stage = only_peer_stage(act, peer, history)
    if act == "kill":
        waits = "" if stage is None else f"; stage {stage} has no other peer, so the swarm waits: {REMEDY}"
        return f"{peer} is killed{waits}"
    if stage is None:
        return f"{peer} leaves between two steps"
    return f"{peer} serves on: stage {stage} has no other peer; it leaves once one serves there: {REMEDY}"


def only_peer_stage(act: PeerAct, peer: str, history: SwarmHistory) -> int | None:
    """The stage that the peer's going would leave without a peer, or None. A peer that also leaves does not count."""
    own = history.now.get(peer)
    if own is None or own.state != "serving":
        return None
    going = history.draining if act == "drain" else ()
    mates = (s for s in history.now.values() if s.stage == own.stage and s.state == "serving" and s.peer != peer)
    return own.stage if all(mate.peer in going for mate in mates) else None
