"""The page around the pages: header with theme switch, tabs, notices, the address, and the beat that polls."""

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qsl, urlencode

import panel as pn
import panel_material_ui as pmui
import param
from bokeh.document import Document
from bokeh.model import Model
from bokeh.settings import settings
from panel.io.resources import LOCAL_DIST
from panel.theme import Design
from panel.util import edit_readonly
from tornado.ioloop import IOLoop
from tornado.process import task_id

from hetplanner.runs.status import LIVE_STATES
from hetplanner.ui.cluster.views.cluster import ClusterView
from hetplanner.ui.collector import COLLECTOR
from hetplanner.ui.export.view import ExportView
from hetplanner.ui.jobs.compute import process_compute
from hetplanner.ui.jobs.jobs import SearchService
from hetplanner.ui.jobs.search_files import process_service
from hetplanner.ui.patches.patches import patch_scripts
from hetplanner.ui.plan.models.explain import MAX_REMEMBERED
from hetplanner.ui.plan.views.plan import PlanView
from hetplanner.ui.run.models.run import SECTIONS
from hetplanner.ui.run.views.away import note_when_closed
from hetplanner.ui.run.views.page import RunView
from hetplanner.ui.security.access import LaunchGuard, allowed_hosts, process_guard, request_is_ours
from hetplanner.ui.security.gate import may_launch
from hetplanner.ui.settings.models.form import MAX_REMEMBERED as MAX_EDITED
from hetplanner.ui.settings.views.settings import settings_view
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.session import MAX_NOTICES, PAGES, Session
from hetplanner.ui.shell.views.address import Address
from hetplanner.ui.shell.views.connection import LOST, come_back_after_loss
from hetplanner.ui.shell.views.page_view import PageView
from hetplanner.ui.shell.views.plan_line import PlanLine
from hetplanner.ui.simulate.model import MAX_REMEMBERED as MAX_CONTROLS
from hetplanner.ui.simulate.view import SimulateView
from hetplanner.ui.widgets.cards import COLOURS, FRAME, Words, chip, frame, html_pane, set_html, show_if
from hetplanner.ui.widgets.choice import Choice
from hetplanner.ui.widgets.deck import Deck

_log = logging.getLogger(__name__)

POLL_MS = 200
BEATS_PER_PULSE = 5
"""Something small is sent so often: Panel's `_dispatch_msgs` may leave messages that wait for the next ones."""
BEATS_PER_FILL = 8
"""A page that was not visited yet is sent to the browser every so many beats."""
OPENING_S = 3.0
"""So long after a session came, no other is sent such a page: making one takes the server half a second or more."""
TITLES = {
    "cluster": "1 Cluster",
    "plan": "2 Plan",
    "simulate": "3 Simulate",
    "run": "4 Run",
    "export": "5 Export",
}
PLACES = ("page", "search", "run", "shown")
"""What is a place to go back to; other changes write over the address."""
SCRIPTS = patch_scripts()
THEME = {
    "light": {"palette": {"primary": {"main": "#0f5fa8"}, "background": {"default": "#fafbfc", "paper": "#ffffff"}}},
    "dark": {
        "palette": {
            "primary": {"main": "#4593d0", "contrastText": "#0c1116"},
            "error": {"main": "#ff7b72"},
            "background": {"default": "#14181d", "paper": "#1b2028"},
        },
        "components": {
            "MuiAppBar": {
                "styleOverrides": {
                    "root": {"backgroundColor": "#1c4d7a", "backgroundImage": "none", "color": "#ffffff"},
                }
            }
        },
    },
}
_VIEWS: dict[str, Callable[[PlannerApp], PageView]] = {
    "cluster": ClusterView,
    "plan": PlanView,
    "simulate": SimulateView,
    "run": RunView,
    "export": ExportView,
}
settings.perform_document_validation = False
"""Bokeh walks over all models of a new page to look for mistakes in layouts, a twentieth of the work of making it."""
NOTICE_MS = {"info": 6000, "success": 5000, "warning": 10_000, "error": 20_000}


def planner_page(
    samples: Path,
    *,
    guard: LaunchGuard | None = None,
    service: SearchService | None = None,
    home: Path | None = None,
    hosts: Collection[str] | None = None,
    behind_login: bool = False,
) -> Any:
    """The whole dashboard for one browser session, or a refusal if its Host is foreign.

    Args:
        samples: folder of the sample clusters.
        guard, service: shared by all sessions of the process; by default its own.
        home: where runs live; None takes `$HETPLANNER_HOME` or the platform's data directory.
        hosts: names that the server goes by; None takes those of `access.allowed_hosts`.
        behind_login: all requests have passed a login, under the name that its proxy goes by.
    """
    pn.extension(
        "tabulator",
        throttled=True,
        design=PlainDesign,
    )
    if pn.state.curdoc is not None:
        # Panel sets this only for pages it renders itself: a session that a reconnecting browser revives would fetch
        # its style sheets from a CDN.
        pn.state.curdoc.template_variables.setdefault("dist_url", LOCAL_DIST)
        come_back_after_loss(pn.state.curdoc)
    if task_id() is not None:
        return refusal(_ONE_PROCESS)
    guard = guard or process_guard()  # `panel serve --warm` comes here before it serves, and the token is printed
    request = _request()
    names = allowed_hosts() if hosts is None else hosts
    if request is not None and not behind_login and not request_is_ours(request, names):
        return refusal(_FOREIGN)
    service = service or process_service(home)
    service.warm()
    process_compute().warm()
    app = PlannerApp(guard, service, samples, home)
    app.session.unlocked = may_launch(request)
    # Weak: Panel keeps the handler of a session in a dictionary of the process.
    pn.config.exception_handler = partial(_show_exception, weakref.ref(app.session))
    return Shell(app).page


def _request() -> Any:
    """The request that opened this session; None in a notebook."""
    context = pn.state.curdoc.session_context if pn.state.curdoc is not None else None
    return context.request if context is not None else None


_FOREIGN = (
    "This page answers to *localhost* only. Open it under `http://localhost` or `http://127.0.0.1` with its port;"
    " other names can be allowed in the variable `HETPLANNER_ALLOWED_HOSTS`."
)
_ONE_PROCESS = (
    "Serve this app with one process: with `--num-procs` every process would have searches and a launch token of its"
    " own, and a page would meet now one, now another."
)


def refusal(reason: str) -> pn.pane.Markdown:
    """What a session gets that is not served: a reason, no data, no widgets."""
    return pn.pane.Markdown(f"## Refused\n\n{reason}")


def _show_exception(session: "weakref.ref[Session]", error: Exception) -> None:
    """Last resort for unforeseen errors: the server's log has the traceback, the page lives on."""
    _log.exception("unexpected error in a session", exc_info=error)
    told = session()
    if told is not None:
        told.notify("error", f"Unexpected error ({type(error).__name__}): the server's log has the details.")


class PlainDesign(Design):
    """No style sheets beyond a component's own.

    Material's would be three more in each of some three hundred components, none of which has an element that they
    style: a tenth of all sheets of the page, which the browser goes through at every change of one. Panel's own
    widgets are given Material's design where they are made.
    """

    modifiers: ClassVar[dict[Any, dict[str, Any]]] = {}


class Page(pmui.Page):
    """A page whose figures keep the look we give them, and which brings its own notices.

    By default the browser sets fonts and colours of every axis, legend and grid again, and lays out all figures for
    each of them: a second of the start, and of a change of theme. The notices that Panel adds to a page by itself stay
    in its list of views when the session ends, and hold the whole document with all that it refers to.
    """

    # The browser takes None for the default, a bar without a name.
    busy_indicator: Any = param.Selector(default="none", objects=["none", "linear", "circular"])
    on_theme: Callable[[bool], None] = staticmethod(lambda dark: None)
    notices: pmui.NotificationArea | None = None

    def server_doc(self, doc: Document | None = None, title: str | None = None, location: Any = True) -> Document:
        """Adds the page and its notices to a session's document; both end with the session."""
        doc = super().server_doc(doc, title, location)
        if self.notices is not None:
            with pn.config.set(browser_info=False):  # the page has brought that along
                self.notices.server_doc(doc, doc.title, location=False)
        return doc

    def get_root(self, doc: Document | None = None, comm: Any = None, preprocess: bool = True) -> Model:
        """The model, told which parts not to style."""
        root = super().get_root(doc, comm, preprocess)
        root.data._custom_theme = ["Axis", "BaseColorBar", "Figure", "Grid", "Legend", "Title"]
        # Panel hands a change on a little later: behind thirty messages of parts that tell the theme as well.
        root.data.on_change("dark_theme", lambda _attr, _old, new: self.on_theme(new))
        return root

    def resolve_resources(self, cdn: bool | Literal["auto"] = "auto", extras: Any = None) -> Any:
        """Scripts and style sheets of the page; the patches of Bokeh and Panel run before the first figure is drawn."""
        found = super().resolve_resources(cdn, extras)
        found["js"] |= SCRIPTS
        return found


class Shell:
    """Puts the pages into tabs and keeps them in step with the session."""

    newest_s: ClassVar[float] = 0.0
    """When the newest session came, monotonic."""

    def __init__(self, app: PlannerApp) -> None:
        Shell.newest_s = time.monotonic()
        self.app = app
        self._beats = 0
        self._notices: deque[tuple[str, str]] = deque(maxlen=MAX_NOTICES)
        self._views: dict[str, PageView] = {}
        self._colours_due: set[str] = set()
        self._is_dark = False
        self.deck = Deck("page", PAGES)
        self.tabs = Choice(
            {name: TITLES[name] for name in PAGES}, self._choose_page, margin=0, sizing_mode="stretch_width"
        )
        self.subject = html_pane(sizing_mode=None, margin=(0, 12))
        self.address = Address(self._go_to, self._take_theme)
        self._place: dict[str, str] = {}
        self._moving = False
        self._last_error = ""
        self._alarm_words = Words(margin=(8, 14))
        self.alarm = frame(self._alarm_words.view, margin=(6, 10))
        self.alarm.styles = FRAME | {"border": f"2px solid {COLOURS['warn']}"}
        self.page = Page(
            title="hetplanner",
            header=[self.subject, self.address],
            sidebar=[settings_view(app)],
            sidebar_width=300,
            main=[self.alarm, self.tabs, PlanLine(app).view, self.deck.view],
            theme_config=THEME,
            busy_indicator="none",
            sidebar_resizable=False,  # its handle has a name but no role
        )
        self.notices = self.page.notices = pmui.NotificationArea(
            js_events={"connection_lost": {"type": "error", "message": LOST}}
        )
        # Each change of `busy` (two per event) makes the page walk its whole model graph, 0.2 s at a time. A reference
        # to a value of our own, not the value: only that ends the watching of Panel's state, which would hold the page.
        with edit_readonly(self.page):
            self.page.busy = param.rx(False)
        self._is_dark = bool(self.page.dark_theme)
        self._wire()
        # The page that the address asks for is the first one; to make another before it takes a second.
        self._fill(app.session.page)
        self.tabs.value = app.session.page
        self.deck.show(app.session.page)

    def _wire(self) -> None:
        session = self.app.session
        note_when_closed(self.app.run)
        session.param.watch(self._queue_notice, "notice")
        session.param.watch(self._open_page, "page")
        self.page.on_theme = self._set_dark
        self.page.param.watch(lambda event: self._set_dark(event.new), "dark_theme")
        self.app.agent.param.watch(self._show_alarm, "words")
        self._show_alarm()
        self.app.plan.param.watch(self._show_subject, ["cluster", "preset", "uploaded"])
        self._show_subject()
        self.app.plan.param.watch(self._show_title, "state")
        self.app.run.param.watch(self._show_title, "runs")
        self.app.probe.param.watch(self._show_title, "changed")
        if pn.state.curdoc and pn.state.curdoc.session_context:
            COLLECTOR.install()
            pn.state.curdoc.on_session_destroyed(COLLECTOR.session_ended)
            self._restore()
            self._place = self._state()
            self.app.plan.param.watch(self._remember, "job_id")
            self.app.run.param.watch(self._remember, ["selected", "section"])
            self.app.cluster.editor.param.watch(self._remember, "draft_id")
            self.app.settings.param.watch(self._remember, "edited")
            self.app.simulate.param.watch(self._remember, "edited")
            explain = self.app.explain
            explain.param.watch(self._remember, "shown")
            explain.kept.param.watch(self._remember, "chosen")
            explain.whatif.param.watch(self._remember, "changes")
            session.param.watch(self._remember, "page")
            # The compute worker answers in a thread of its own. Bokeh's list of current documents has no lock.
            add_callback = IOLoop.current().add_callback
            session.answered = partial(add_callback, pn.state.curdoc.add_next_tick_callback, self._look)
            pn.state.onload(self._start_beat)

    def _start_beat(self) -> None:
        # Only once the browser has drawn the page: what is added before would reach it twice or not at all. By Bokeh:
        # Panel's own callback counts every beat as being busy, a sixth of the server's work.
        assert pn.state.curdoc is not None
        pn.state.curdoc.add_periodic_callback(self._beat, POLL_MS)

    def _fill(self, name: str) -> None:
        """Makes a page and sends it to the browser: on its first visit, or when there is time. All at once are slow."""
        if name not in self._views:
            self._views[name] = _VIEWS[name](self.app)
            self._views[name].set_dark(self._is_dark)
            self.deck.put(name, self._views[name].view)

    def _fill_next(self) -> None:
        if self._beats % BEATS_PER_FILL == 0 and time.monotonic() - Shell.newest_s > OPENING_S:
            for name in self.deck.empty[:1]:
                self._fill(name)

    @contextmanager
    def _telling_errors(self) -> Iterator[None]:
        """Bokeh only logs what its callbacks raise: the page would stand still without a word. Each error is told once.

        Panel's handler of exceptions sees those of events alone.
        """
        try:
            yield
        except Exception as error:
            if repr(error) != self._last_error:
                self._last_error = repr(error)
                _show_exception(weakref.ref(self.app.session), error)

    def _beat(self) -> None:
        self._show_notices()
        with self._telling_errors(), pn.io.hold():
            self._beats += 1
            self.address.pulse = self._beats // BEATS_PER_PULSE
            self._fill_next()
            self.app.agent.beat()
            self.app.plan.poll()
            self.app.front.poll()
            self.app.poll_answers()
            for view in self._views.values():
                view.beat()
            self.app.cluster.sync()
            self.app.run.beat(visible=self.app.session.page == "run")

    def _look(self) -> None:
        """An answer of the compute worker comes within milliseconds: a beat would make a person wait for it."""
        with self._telling_errors(), pn.io.hold():
            self.app.poll_answers()
            for view in self._views.values():
                view.beat()

    def _show_alarm(self, *_: Any) -> None:
        self._alarm_words.set(self.app.agent.words, bold="No agent.")
        show_if(self.alarm, bool(self.app.agent.words))

    def _queue_notice(self, event: Any) -> None:
        self._notices.append(event.new)

    def _show_notices(self) -> None:
        """One a beat, outside of any hold: held together, their messages reach the browser half."""
        if self._notices:
            kind, text = self._notices.popleft()
            self.notices.send(text, duration=NOTICE_MS[kind], type=kind)

    def _choose_page(self, name: str) -> None:
        self.app.session.page = name

    def _open_page(self, event: Any) -> None:
        self._fill(event.new)
        self._colour_page(event.new)
        self.tabs.value = event.new
        self.deck.show(event.new)

    def _take_theme(self, dark: bool) -> None:
        """The theme that this browser chose before, or that its system prefers."""
        self.page.dark_theme = dark

    def _set_dark(self, dark: bool) -> None:
        if dark == self._is_dark:
            return
        self.address.dark = dark
        page = self.app.session.page
        self._is_dark, self._colours_due = dark, {*self._views} - {page}
        with pn.io.hold():
            self._views[page].change_theme(dark)

    def _colour_page(self, name: str) -> None:
        """Gives a page's figures the theme, if they lack it: those out of sight wait until they are looked at."""
        if name in self._colours_due:
            self._colours_due.remove(name)
            self._views[name].set_dark(self._is_dark)

    def _show_title(self, *_: Any) -> None:
        """The title of the browser's tab, and dots on the pages' names, say whether something runs."""
        busy = {"cluster": "measuring"} if self.app.probe.busy else {}
        busy |= {"plan": "searching"} if self.app.plan.searching else {}
        busy |= {"run": "training"} if any(row.state in LIVE_STATES for row in self.app.run.runs) else {}
        self.tabs.set_busy(busy)
        self.address.title = f"● {' and '.join(busy.values())} · hetplanner" if busy else "hetplanner"

    def _show_subject(self, *_: Any) -> None:
        cluster, plan = self.app.plan.cluster, self.app.plan
        set_html(self.subject, chip(f"{cluster.name if cluster else 'no cluster'} · {plan.model_name}"))

    # -- the address remembers the page: over a reload, and for Back and Forward ----------------------

    def _restore(self) -> None:
        args = pn.state.session_args
        self._take({name: (values or [b""])[0].decode(errors="replace") for name, values in args.items()})

    def _take(self, asked: dict[str, str]) -> None:
        """Shows what an address asks for; what it does not name stays."""

        def value(name: str, most: int = 120) -> str:
            return asked.get(name, "")[:most]

        self.app.restore(value("page"), value("search"), value("run"), value("draft"), value("shown"))
        if value("section") in SECTIONS:
            self.app.run.section = value("section")
        self.app.settings.restore(value("settings", MAX_EDITED))
        if "simulate" in asked:
            self.app.simulate.restore(value("simulate", MAX_CONTROLS))
        if "kept" in asked or "whatif" in asked:
            self.app.explain.restore(value("kept", 400), value("whatif", MAX_REMEMBERED))

    def _go_to(self, search: str) -> None:
        """Where a person went back or forth to: the page shows it, and the address stays as it is."""
        asked = dict(parse_qsl(search.removeprefix("?")))
        self._moving = True
        try:
            now = self._state()
            self._take({"page": PAGES[0]} | {n: v for n, v in asked.items() if n == "page" or v != now.get(n)})
        finally:
            self._moving = False
        self._place = self._state()
        self._write(push=False)

    def _state(self) -> dict[str, str]:
        """What the address holds."""
        return {
            "page": self.app.session.page,
            "search": self.app.plan.job_id,
            "run": self.app.run.selected,
            "section": "" if self.app.run.section == SECTIONS[0] else self.app.run.section,
            "draft": self.app.cluster.editor.draft_id,
            "settings": self.app.settings.edited,
            "simulate": self.app.simulate.edited,
            **self.app.explain.remembered(),
        }

    def _remember(self, *_: Any) -> None:
        if self._moving:
            return
        before, self._place = self._place, self._state()
        self._write(push=any(before.get(name) != self._place[name] for name in PLACES) and bool(before))

    def _write(self, push: bool) -> None:
        query = {n: (v or [b""])[0].decode(errors="replace") for n, v in pn.state.session_args.items()} | self._place
        text = urlencode({name: value for name, value in query.items() if value})
        self.address.write(f"?{text}" if text else "", push)
