"""Short computations outside the server process: what-if estimates, explanations, simulations.

A long-lived process (`python -m hetplanner.ui.jobs.compute_process`) does them one after the other and speaks JSON
lines. Of one slot (of one session, say, and one card) the newest question wins. A session asks and goes on. It looks at
its ticket when it is told, or at its next beat. Simulations may take seconds, so they have a compute worker of their
own.
"""

import contextlib
import json
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hetplanner.plan.model import Plan
from hetplanner.ui.jobs.child import Child

_log = logging.getLogger(__name__)

KNOWN_PLANS = 24
"""Plans that the process remembers; the client forgets in the same order, so that both know the same ones."""
ANSWER_LIMIT_S = 60.0
"""A computation that takes longer is given up, and its process with it."""
RESTART_S = 1.5
"""A computation whose answer no page needs any more goes on for so long; then a fresh process is sooner ready."""
MAX_WAITING = 100
_PATIENCE = {"explain": 1, "simulate": 2, "report": 2}
"""Questions with a lower number go first: a what-if comes before the rest."""


@dataclass
class Ticket:
    """A question that was asked. `done` turns true once; then `result` or `error` is set, or `stale`.

    Attributes:
        result: the answer, plain data.
        error: why there is none, in one line.
        stale: a newer question of its slot has taken its place.
        began: when the process took it up, on the monotonic clock.
    """

    done: bool = False
    result: dict[str, Any] | None = None
    error: str = ""
    stale: bool = False
    began: float = 0.0

    def settle(self, result: dict[str, Any] | None, error: str) -> None:
        """Takes the answer, unless a newer question has taken its place."""
        if not self.stale:
            self.result, self.error, self.done = result, error, True

    def drop(self) -> None:
        """A newer question has taken its place."""
        self.stale = self.done = True


@dataclass
class _Question:
    what: str
    plan: Plan
    fields: Mapping[str, Any]
    ticket: Ticket
    answered: Callable[[], object]


class ComputeWorker:
    """Asks the process; starts it when it is needed, and again when it has died."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = list(command or [sys.executable, "-m", "hetplanner.ui.jobs.compute_process"])
        self._waiting: OrderedDict[str, _Question] = OrderedDict()
        self._running: tuple[str, _Question] | None = None
        self._changed = threading.Condition()
        self._child: _ComputeChild | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def warm(self) -> None:
        """Starts the process, so that the first question need not wait for imports."""
        with self._changed:
            self._begin()

    def ask(
        self,
        slot: str,
        what: str,
        plan: Plan,
        fields: Mapping[str, Any] | None = None,
        answered: Callable[[], object] = lambda: None,
    ) -> Ticket:
        """Asks a question.

        Args:
            slot: whose question it is; the newest of a slot wins.
            what: `evaluate`, `explain` or another question; see `hetplanner.ui.jobs.compute_process`.
            plan: what it is about.
            fields: more of the request, plain data.
            answered: called, from the compute worker's thread, once the ticket has an answer.
        """
        question = _Question(what, plan, fields or {}, Ticket(), answered)
        with self._changed:
            self._begin()
            self._supersede(slot)
            self._waiting[slot] = question
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popitem(last=False)[1].ticket.drop()
            self._changed.notify()
        return question.ticket

    def close(self) -> None:
        """Ends the process (tests)."""
        with self._changed:
            self._closed = True
            if self._child is not None:
                self._child.kill()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(5.0)

    @property
    def pid(self) -> int | None:
        """Of the process, None before it was started."""
        return self._child.pid if self._child is not None else None

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True, name="compute")
            self._thread.start()

    def _supersede(self, slot: str) -> None:
        """Drops the slot's older question; one that has long been running is not waited for."""
        older = self._waiting.pop(slot, None)
        if older is not None:
            older.ticket.drop()
        if self._running is not None and self._running[0] == slot:
            running = self._running[1].ticket
            running.drop()
            if time.monotonic() - running.began > RESTART_S and self._child is not None:
                self._child.kill()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the first question tells why it does not start
            self._living_child()
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Waits for a question and answers it; false once the compute worker is closed.

        A function of its own, so that the thread does not hold the last question, and with it a page, while it waits.
        """
        question = self._next()
        if question is None:
            return False
        try:
            result, error = self._living_child().answer(question)
        except Exception as failure:  # the compute worker must outlive whatever happens to one question
            _log.exception("the compute worker failed")
            result, error = None, f"compute worker: {type(failure).__name__}: {failure}"[:300]
        with self._changed:
            self._running = None
            question.ticket.settle(result, error)
        try:
            question.answered()
        except Exception:  # its page was closed meanwhile
            _log.debug("no page to tell of an answer", exc_info=True)
        return True

    def _living_child(self) -> "_ComputeChild":
        if self._child is None or not self._child.alive:
            self._child = _ComputeChild(self._command)
        return self._child

    def _next(self) -> _Question | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            slot = min(self._waiting, key=lambda s: _PATIENCE.get(self._waiting[s].what, 0))
            self._running = slot, self._waiting.pop(slot)
            self._running[1].ticket.began = time.monotonic()
            return self._running[1]


class _ComputeChild(Child):
    """The process, and the plans that it knows."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self._known: OrderedDict[int, Plan] = OrderedDict()
        self._count = 0

    def answer(self, question: _Question) -> tuple[dict[str, Any] | None, str]:
        """(result, '') or (None, what went wrong)."""
        late = threading.Timer(ANSWER_LIMIT_S, self.kill)
        late.daemon = True
        late.start()
        try:
            key = self._introduce(question.plan)
            self._count += 1
            request = {"do": question.what, "id": self._count, "key": key, **question.fields}
            self.stdin.write(json.dumps(request, separators=(",", ":")) + "\n")
            self.stdin.flush()
            for line in self.stdout:
                message = json.loads(line)
                if message["id"] == self._count:
                    return message.get("result"), message.get("error", "")
        except (OSError, ValueError) as error:
            self.complaints.append(str(error))
            self.kill()
        finally:
            late.cancel()
        return None, f"compute worker: the process that computes this ended {self.last_words()}; try again"[:600]

    def _introduce(self, plan: Plan) -> int:
        """The key under which the process knows a plan; one that it does not know is sent."""
        key = id(plan)  # unique as long as we hold the plan
        if key in self._known:
            self._known.move_to_end(key)
            return key
        body = plan.model_dump_json(by_alias=True, exclude_none=True)
        self.stdin.write(f'{{"do":"plan","key":{key},"most":{KNOWN_PLANS},"plan":{body}}}\n')
        self._known[key] = plan
        if len(self._known) > KNOWN_PLANS:
            self._known.popitem(last=False)
        return key


_workers: dict[str, ComputeWorker] = {}
_workers_lock = threading.Lock()


def process_compute(lane: Literal["quick", "long"] = "quick") -> ComputeWorker:
    """This process's compute worker for quick questions, or the one for long ones, such as simulations."""
    with _workers_lock:
        return _workers.setdefault(lane, ComputeWorker())
