"""What goes wrong in the event simulation of a swarm: how often, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

NEVER = float("inf")


@dataclass(frozen=True)
class Faults:
    """Bad luck: mean seconds between faults of a kind (inf: never), shares of messages, chances.

    Attributes:
        kill_s, hang_s, cut_s, leave_s, twin_s: of a peer; a twin is a second process with a live peer's id.
        link_s: a peer and another, or a trainer, cannot reach one another for a while; the coordinator reaches both.
        trainer_s: kills of a trainer.
        disk_full_s: the disk is full for a while.
        everybody_s: all processes die at once and are started again together.
        damage: chance that a checkpoint cannot be read.
        phase_kill: chance that the coordinator dies at a change of phase.
        lost, late, doubled: shares of messages.
        reduce: chance that an all-reduce fails, for all or some of its members.
        move: chance of a random move at a step boundary.
        noticed: chance that the coordinator's connection to a killed peer breaks before its silence tells.
        fetch_s: mean seconds to get a stage's state.
    """

    kill_s: float = 12.0
    hang_s: float = 15.0
    cut_s: float = 25.0
    link_s: float = 15.0
    leave_s: float = 60.0
    twin_s: float = 60.0
    trainer_s: float = 60.0
    disk_full_s: float = 200.0
    everybody_s: float = NEVER
    damage: float = 0.0
    phase_kill: float = 0.01
    lost: float = 0.003
    late: float = 0.003
    doubled: float = 0.01
    reduce: float = 0.02
    move: float = 0.1
    noticed: float = 0.7
    fetch_s: float = 0.5


NO_FAULTS = Faults(
    kill_s=NEVER,
    hang_s=NEVER,
    cut_s=NEVER,
    link_s=NEVER,
    leave_s=NEVER,
    twin_s=NEVER,
    trainer_s=NEVER,
    disk_full_s=NEVER,
    phase_kill=0.0,
    lost=0.0,
    late=0.0,
    doubled=0.0,
    reduce=0.0,
    move=0.0,
    noticed=1.0,
)


@dataclass(frozen=True)
class SimulatedMove:
    """A move that the simulation's random policy proposes."""

    peer: str
    to_stage: int
