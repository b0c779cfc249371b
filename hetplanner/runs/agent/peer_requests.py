"""Which peers of a running swarm may be asked to leave or to come back, or killed."""

from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import load_any_plan
from hetplanner.runs.agent.owned import OwnedRun
from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.swarm.launch.requests import PeerAct, orders_so_far

MAX_NAMED = 8


def check_peer(run: OwnedRun, peer: str, act: PeerAct) -> None:
    """Refuses a request to a peer that a run does not have, or that does not fit what it does. Raises InvalidInput."""
    plan = load_any_plan(run.directory.plan_file)
    if not isinstance(plan, ElasticPlan):
        raise InvalidInput(f"run {run.status.run}: its plan is static: it has ranks and no peers")
    if peer not in plan.stage_of_peer:
        known = ", ".join(plan.peers[:MAX_NAMED]) + (", …" if len(plan.peers) > MAX_NAMED else "")
        raise InvalidInput(f"peer: must be one of the run's {len(plan.peers)} ({known}), got {peer!r:.80}")
    run.history = run.history or SwarmHistory(run.directory.path)
    is_there = peer in run.history.read_all().now
    if act == "rejoin":
        if is_there:
            raise InvalidInput(f"peer {peer}: is in the swarm; only a peer that has left can rejoin")
        return
    before = _acts_since_rejoin(run, peer)
    if before and (act == "drain" or "kill" in before):
        words = "killed" if "kill" in before else "asked to leave"
        raise InvalidInput(f"peer {peer}: has been {words} already; the run's events show when it has left")
    if not is_there:
        raise InvalidInput(f"peer {peer}: is not in the swarm now: it has left, or has not joined yet")


def _acts_since_rejoin(run: OwnedRun, peer: str) -> set[PeerAct]:
    acts: set[PeerAct] = set()
    for asked in orders_so_far(run.directory.path, run.status.restarts):
        if asked.peer == peer:
            acts = set() if asked.act == "rejoin" else acts | {asked.act}
    return acts
