"""Traffic of a run: on the map and link by link, against what each link can carry."""

from hetplanner.plots.live import TrafficMap
from hetplanner.runs.reading.loads import LOAD_HEAD
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.run.views.tables import html_table, note
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.widgets.cards import card, chart, full_width, html_pane, page, set_html

HEIGHT = 400
MAX_LINKS = 60
FULL = 0.8


class Network(Section):
    """The map and a table of links, the fullest first."""

    signals = ("detail_changed",)

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        self.map = TrafficMap(height=HEIGHT, dark=dark)
        self.figures = [self.map]
        self.links = html_pane(margin=(4, 14, 12, 14))
        self.view = page(
            full_width(card("Traffic between sites: colour and width by the fullest link", chart(self.map))),
            full_width(card("Links, mean over the run's steps", self.links)),
        )

    def show(self) -> None:
        """What the ranks have counted so far."""
        detail, reader = self.model.detail, self.model.reader
        cluster = reader.plan.problem.cluster if reader is not None and detail is not None else None
        self.map.show_loads(cluster, detail.sites if detail is not None else ())
        if detail is None or not detail.loads:
            words = "shown from the first steps: the ranks count the bytes that they receive"
            is_swarm = detail is not None and detail.swarm is not None
            set_html(self.links, note("not told by the peers of a swarm" if is_swarm else words))
            return
        shown = detail.loads[:MAX_LINKS]
        rows = [[f"{x.source} · {x.source_device} → {x.target} · {x.target_device}", *x.texts] for x in shown]
        text = html_table(LOAD_HEAD, rows, numbers=6, bad=[x.share >= FULL for x in shown], height=420)
        more = len(detail.loads) - len(shown)
        set_html(self.links, text + (note(f"… and {more} links that carry less of their limit") if more > 0 else ""))
