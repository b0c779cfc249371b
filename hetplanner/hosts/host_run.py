"""One host's part of an attempt, as the head sees it: a thread that asks, starts and follows, also after a break."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from hetplanner.errors import HetplannerError, InvalidInput, Preempted, RunError
from hetplanner.hosts.asking import ask_facts
from hetplanner.hosts.checks import Found
from hetplanner.hosts.connection import Connection
from hetplanner.hosts.mirror import Mirror
from hetplanner.hosts.transport import Transport, Unfit, Unreachable
from hetplanner.launchers.hosts_file import PlacedHost
from hetplanner.schema import Noun, checked
from hetplanner.swarm.launch.requests import PeerOrder, orders_text

log = logging.getLogger(__name__)

RETRY_S = 1.0
AWAY_S = 150.0
"""A host whose processes were told to end, since its machine is taken away, is asked again after so long."""
BREAK_S = 5.0
"""After a longer silence a connection has had a break."""
MAX_WAITING_PINGS = 100
Sentence = Annotated[str, Field(max_length=4000)]


class HostState(Noun):
    """What a node process says, see `keeper.State`."""

    attempt: int
    ended: bool = False
    exit_code: int | None = None
    ranks: dict[int, int] = Field(default_factory=dict)
    words: Annotated[tuple[Sentence, ...], Field(max_length=20)] = ()
    lost: tuple[int | None, Sentence] | None = None
    stands: Sentence = ""
    warnings: Annotated[tuple[Sentence, ...], Field(max_length=100)] = ()


class HostRun:
    """A host of an attempt.

    Args:
        host: which.
        transport: the way to it.
        asked: what the host is asked before it starts.
        order: header and body that start it.
        mirror: takes its files.
        patience_s: how long an unreachable host is waited for before the start.
        returns: when its processes have ended it is started again, as soon as it can be reached.

    Attributes:
        found: what the host said; None: it is still being asked.
        go: set to have it started.
        started: it was.
        refused: why it could not be started, or says what no host of ours would.
        state: of its node process.
        lives: whether that process is there; `said`: its last words where it has ended without saying how.
        done: it has ended, and all its files are here.
        ended_s: when all its processes were ended on demand.
        heard_s: when it was last heard of.
        since_s: since when it has been heard of without a break.
        asked: how many requests to its peers the host has taken.
        clock_s, clock_error_s: how far its clock is ahead, and by how much that may be wrong.
    """

    def __init__(
        self,
        host: PlacedHost,
        transport: Transport,
        asked: dict[str, Any],
        order: Callable[[Found], tuple[dict[str, Any], bytes]],
        mirror: Mirror,
        patience_s: float = 0.0,
        *,
        returns: bool = False,
    ) -> None:
        self.host, self.mirror = host, mirror
        self.found: Found | None = None
        self.go = threading.Event()
        self.started = self.lives = self.done = False
        self.ended_s: float | None = None
        self.refused = self.said = ""
        self.state: HostState | None = None
        self.heard_s = self.since_s = time.monotonic()
        self.clock_s, self.clock_error_s = 0.0, float("inf")
        self._transport, self._asked, self._order, self._patience_s = transport, asked, order, patience_s
        self.returns, self.asked = returns, 0
        self._told = ""
        self._gone_s: float | None = None
        self._folder = str(asked["run_folder"])
        self._connection: Connection | None = None
        self._over = threading.Event()
        self._pings: dict[int, tuple[float, float]] = {}
        self._num_pings = 0
        self._thread = threading.Thread(target=self._run, name=f"host {host.name}", daemon=True)

    def begin(self) -> None:
        """Begins to ask the host."""
        self._thread.start()

    @property
    def is_starting(self) -> bool:
        """Whether it may be started at any moment."""
        return self.go.is_set() and not self.started and not self.refused and self._thread.is_alive()

    @property
    def is_connected(self) -> bool:
        """Whether a connection to the host stands."""
        return self._connection is not None

    def unheard_s(self) -> float:
        """For how long the host has said nothing."""
        return time.monotonic() - self.heard_s

    # -- telling it something ---------------------------------------------------------------------

    def ping(self) -> None:
        """Tells the host that the head is there."""
        self._num_pings += 1
        if len(self._pings) > MAX_WAITING_PINGS:
            self._pings.clear()
        self._pings[self._num_pings] = time.monotonic(), time.time()
        self._send("ping", id=self._num_pings)

    def tell(self, what: str) -> None:
        """Passes on a wish: stop, preempt or end; to be repeated until it is done, since a connection may be gone."""
        self._send(what, folder=self._folder)

    def order_peers(self, asked: Sequence[PeerOrder]) -> None:
        """Passes on all that was asked of the host's peers, where it has not taken it; to be repeated, too."""
        if self.started and not self.done and self.asked < len(asked):
            self._send("ask-peers", orders_text(asked), folder=self._folder, count=len(asked))

    def _send(self, do: str, body: bytes = b"", **header: Any) -> None:
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(Unreachable):  # the thread that reads notices it, too
                connection.send(do, body, **header)

    def close(self) -> None:
        """Lets the host go."""
        self._over.set()
        self.go.set()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- its thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.found = self._look()
            self.go.wait()
            if self._over.is_set():
                return
            if self.returns and isinstance(self.found.error, Unreachable):
                self.started = True  # its processes are as good as gone
            elif self.found.error is not None:
                return
            else:
                self._start(self.found)
        except HetplannerError as error:
            self.refused = str(error)
            return
        while not self._over.is_set() and (self.returns or not self.done):
            if not self.done and not (self.returns and self.is_gone):
                self._follow()
            if self.returns:
                self._start_if_gone()
            self._over.wait(RETRY_S)

    def _look(self) -> Found:
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                connection = self._open()
                return ask_facts(connection, self._asked)
            except Unreachable as error:
                self._drop()
                if self._over.is_set() or time.monotonic() >= deadline_s:
                    return Found(self.host, error=error)
                self._tell(error)
                self._over.wait(RETRY_S)
            except Unfit as error:
                return Found(self.host, error=error)

    def _tell(self, error: HetplannerError) -> None:
        """Logs why the host is tried again, once in a row: it may be away for hours."""
        if str(error) != self._told:
            self._told = str(error)
            log.info("host %s: %s; it is tried again", self.host.name, error)

    def _open(self) -> Connection:
        connection = Connection(self.host, self._transport)
        self.heard_s = self.since_s = time.monotonic()
        self._connection = connection
        if self._over.is_set():
            connection.close()
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _start(self, found: Found) -> None:
        header, body = self._order(found)
        assert self._connection is not None
        try:
            self._connection.ask("start", body, **header)
        except Unreachable as error:  # whether it was started is seen when it is followed
            self._tell(error)
            self._drop()
        self.started = self.lives = True

    @property
    def is_gone(self) -> bool:
        """Whether its processes are there no more, other than because all is done."""
        if self.state is not None and self.state.ended:
            return self.state.exit_code != 0
        return self.started and not self.lives

    def _start_if_gone(self) -> None:
        """Starts a host again whose processes are gone, where it can be reached and is fit."""
        if not self.is_gone:
            self._gone_s = None
            return
        self._gone_s = self._gone_s or time.monotonic()
        is_told = self.state is not None and self.state.exit_code == Preempted.exit_code
        if time.monotonic() - self._gone_s < (AWAY_S if is_told else 0.0):
            return
        self._asked = self._asked | {"attempt": self._asked["attempt"] + 1, "port": None}
        try:
            connection = self._connection or self._open()
            header, body = self._order(ask_facts(connection, self._asked))
            connection.ask("start", body, **(header | {"attempt": self._asked["attempt"]}))
        except (Unreachable, Unfit, RunError) as error:
            self._tell(error)
            self._drop()
            return
        self._told = ""
        log.info("host %s: started again", self.host.name)
        self.state, self._gone_s, self.lives, self.done, self.ended_s = None, None, True, False, None

    def _follow(self) -> None:
        """Follows the host until the connection ends."""
        try:
            connection = self._connection or self._open()
            asked = {name: self._asked[name] for name in ("attempt", "lease_s")}
            connection.send("follow", folder=self._folder, files=self.mirror.rows(), **asked)
            connection.follow(self._take)
        except (Unreachable, Unfit) as error:
            if not self._over.is_set() and not self.done:
                self._tell(error)
        except OSError as error:
            log.warning("host %s: its files cannot be written here: %s; tried again", self.host.name, error)
        except (RunError, InvalidInput) as error:
            self.refused = str(error)
            self._over.set()
        self._drop()

    def _take(self, header: dict[str, Any], body: bytes) -> None:
        if self.unheard_s() > BREAK_S:
            self.since_s = time.monotonic()
        self.heard_s = time.monotonic()
        if "file" in header:
            self.mirror.take(header, body)
        elif "pong" in header:
            self._take_pong(header)
        elif "state" in header:
            if header["state"] is not None:
                self.state = checked(HostState, header["state"], "its node process")
            self.said = str(header.get("said", ""))[:500]
            self.lives = bool(header.get("lives"))  # after the state: a run that has ended is not lost
            if self.returns and self.is_gone and not (self.state is not None and self.state.ended):
                raise Unreachable("its processes have ended")
        elif header.get("done"):
            self.done = True
            raise Unreachable("all is here")
        elif isinstance(header.get("asked"), int):
            self.asked = header["asked"]
        elif header.get("ended"):
            self.ended_s = time.monotonic()

    def _take_pong(self, header: dict[str, Any]) -> None:
        sent = self._pings.pop(header["pong"], None) if isinstance(header["pong"], int) else None
        clock = header.get("unix_s")
        if sent is None or isinstance(clock, bool) or not isinstance(clock, int | float):
            return
        half_s = (time.monotonic() - sent[0]) / 2
        if half_s <= self.clock_error_s:
            self.clock_s, self.clock_error_s = float(clock) - (sent[1] + half_s), half_s
