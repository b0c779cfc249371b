"""What one browser session shares between its pages: notices, the open page, the launch lock, the current plan."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import param

from hetplanner.errors import HetplannerError
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.ui.plan.models.elastic import static_view
from hetplanner.ui.security.access import LaunchGuard

NoticeKind = Literal["info", "success", "warning", "error"]
PAGES = ("cluster", "plan", "simulate", "run", "export")
MAX_NOTICES = 50


class Session(param.Parameterized):
    """One session. `in_hand` is the plan that Run and Export work with: the best of the last search, or an opened one;
    `plan` is what pages of static plans show of it.
    """

    page: Any = param.Selector(default="cluster", objects=list(PAGES))
    unlocked = param.Boolean(default=False, doc="The launch token was typed in; only this session is unlocked.")
    plan = param.ClassSelector(class_=Plan, default=None)
    elastic = param.ClassSelector(
        class_=ElasticPlan, default=None, doc="The current elastic plan; `plan` is a steady-state step of it then."
    )
    notice = param.Tuple(default=("info", ""), length=2, doc="Kind and text of the newest notice.")

    def __init__(self, guard: LaunchGuard, **params: Any) -> None:
        super().__init__(**params)
        self._guard = guard
        self.id = secrets.token_hex(4)
        """Tells this session's questions to the compute worker from those of others."""
        self.notices: list[tuple[str, str]] = []
        self.answered: Callable[[], object] = lambda: None
        """Called, from another thread, when the compute worker has answered a question of this session."""
        # Also when the same static plan is taken again.
        self.param.watch(lambda _: setattr(self, "elastic", None), "plan", onlychanged=False)

    @property
    def in_hand(self) -> AnyPlan | None:
        """The plan that Run and Export work with."""
        return self.plan if self.elastic is None else self.elastic

    def take(self, plan: AnyPlan) -> Plan:
        """Makes a plan the current one, and gives what pages of static plans show of it."""
        shown = static_view(plan)
        self.plan = shown
        if isinstance(plan, ElasticPlan):
            self.elastic = plan
        return shown

    def notify(self, kind: NoticeKind, text: str) -> None:
        """Shows a line to the person."""
        self.notices = [*self.notices, (kind, text)][-MAX_NOTICES:]
        with param.parameterized.discard_events(self):
            self.notice = (kind, text)
        self.param.trigger("notice")  # also when it is the same line again

    def unlock(self, text: str) -> bool:
        """Unlocks launching for this session if `text` is the token."""
        with self.reporting():
            if self._guard.check(text):
                self.unlocked = True
                self.notify("success", "Launching is unlocked for this page.")
                return True
            self.notify("error", "token: not the launch token of this server; it is printed in its terminal")
        return False

    @contextmanager
    def reporting(self, on_error: Callable[[], None] | None = None) -> Iterator[None]:
        """Turns errors raised on purpose into a notice; the page lives on with its last good state."""
        try:
            yield
        except HetplannerError as error:
            self.notify("error", str(error))
            if on_error is not None:
                on_error()
