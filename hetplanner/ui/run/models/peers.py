"""Peers of a running swarm that a person has leave, kills or brings back. The agent does it, as it does a stop."""

import logging
from collections.abc import Callable
from typing import Any

import param

from hetplanner.runs.reading.peer_orders import only_peer_stage, what_follows
from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.swarm.launch.requests import PeerAct
from hetplanner.ui.shell.models.calls import Calls
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.watch import RunDetail

_log = logging.getLogger(__name__)

LOCKED = "type the launch token first; it is printed in the server's terminal"
MAX_NAMES = 500


class PeersModel(param.Parameterized):
    """The peers that are there now, one of them chosen, and what became of the last request."""

    stage_of = param.Dict(default={}, doc="Stage of every peer that is there.")
    gone = param.List(default=[], doc="Peers that were there and can come back.")
    peer = param.String(default="", doc="The chosen one; '' if none.")
    words = param.String(default="", doc="What was done last.")
    refusal = param.String(default="", doc="Why it was not.")
    asking = param.Boolean(default=False)

    def __init__(self, session: Session, agent: Callable[[], Any], **params: Any) -> None:
        super().__init__(**params)
        self._session, self._agent = session, agent
        self._calls = Calls(session)
        self._run = ""
        self._history: SwarmHistory | None = None

    def open(self, run_id: str) -> None:
        """Another run is shown."""
        self._run = run_id
        self.see(None)
        self.param.update(words="", refusal="")

    def see(self, detail: RunDetail | None) -> None:
        """The peers that are there now."""
        self._history = history = detail.swarm if detail is not None else None
        now = list(history.now.values())[:MAX_NAMES] if history is not None and not history.is_over else []
        stage_of = {stay.peer: stay.stage for stay in now}
        before = [] if history is None or history.is_over else [stay.peer for stay in history.stays]
        gone = sorted(set(before) & set(detail.expected if detail else ()) - set(stage_of))[:MAX_NAMES]
        self.param.update(stage_of=stage_of, gone=gone, peer=self.peer if self.peer in (*stage_of, *gone) else "")

    @property
    def place(self) -> str:
        """Where the chosen peer is; '' if none is chosen."""
        if self.peer in self.stage_of:
            return f"{self.peer} serves stage {self.stage_of[self.peer]}."
        return f"{self.peer} has left; it can be brought back." if self.peer else ""

    @property
    def warning(self) -> str:
        """What the chosen peer's going means where it is the only one of its stage."""
        stage = only_peer_stage("drain", self.peer, self._history) if self._history is not None else None
        if stage is None:
            return ""
        return f"The only peer of stage {stage}: it leaves when another serves there; killed, the swarm waits for one."

    def ask(self, act: PeerAct) -> None:
        """Asks the agent. The lock is checked here, in the server, not only in the page."""
        peer, run_id, history = self.peer, self._run, self._history
        known = self.gone if act == "rejoin" else self.stage_of
        if history is None or peer not in known or not run_id or self.asking:  # what a page chooses may be anything
            return
        if not self._session.unlocked:
            self.param.update(refusal=f"{act}: {LOCKED}", words="")
            return
        _log.info("%s of %s: %s", peer, run_id, act)
        self.param.update(asking=True, refusal="", words="")
        words = what_follows(act, peer, history)
        self._calls.make(
            lambda: self._agent().ask_peer(run_id, peer, act),
            lambda _: self._answered(words=f"{words}."),
            lambda text: self._answered(refusal=text),
        )

    def _answered(self, words: str = "", refusal: str = "") -> None:
        self.param.update(asking=False, words=words, refusal=refusal)

    def take(self) -> None:
        """Takes the agent's answer."""
        self._calls.take()
