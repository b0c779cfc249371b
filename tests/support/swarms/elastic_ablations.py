"""Wrong behaviours of a swarm, each one slip that the checks of the simulation must see."""

from hetplanner.elastic.coordinator.decisions import Committed
from hetplanner.elastic.coordinator.membership import PeerState
from hetplanner.elastic.protocol.coordinator_events import Persist, Persisted
from hetplanner.elastic.protocol.messages import FromSeed
from hetplanner.elastic.simulation.hosts import PeerHost


class GreedyPeer(PeerHost):
    """Folds whatever has finished, journaled or not, as the published implementation does."""

    def fold(self, tokens):
        return super().fold(tuple(self.gradients))


def count_nothing(coordinator):
    """Commits whatever the stages counted."""
    coordinator.transaction._is_exact = lambda: True


def know_ids_only(coordinator):
    """Takes manifests of dead incarnations for those of whoever has the id now, and commits whatever was counted."""
    count_nothing(coordinator)

    def serves(member, stage):
        record = coordinator.membership.get(member.peer)
        return record is not None and record.state is PeerState.SERVING and record.stage == stage

    coordinator.journal._serves = serves


def start_fresh(coordinator):
    """Gives a stage without a live copy initial weights."""
    find = coordinator._assignment._find_source
    coordinator._assignment._find_source = lambda stage, joiner: find(stage, joiner) or FromSeed()


def tell_before_writing(coordinator):
    """Tells the peers of a commit before it is on the disk."""
    handle, unwritten = coordinator.handle, []

    def hasty(event, now_s):
        early = [action for decision in unwritten for action in handle(Persisted(decision), now_s)]
        actions = early + handle(event, now_s)
        unwritten[:] = [a.decision for a in actions if isinstance(a, Persist) and isinstance(a.decision, Committed)]
        return actions

    coordinator.handle = hasty


ABLATIONS = {
    "fold whatever finished": {"host_kind": GreedyPeer, "prepare_coordinator": count_nothing},
    "no incarnations, no count": {"prepare_coordinator": know_ids_only},
    "fresh weights for a lost stage": {"prepare_coordinator": start_fresh},
    "tell before the decision is durable": {"prepare_coordinator": tell_before_writing},
}
"""Name to arguments of Simulation."""
