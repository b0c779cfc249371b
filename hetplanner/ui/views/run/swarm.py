"""The swarm of a run: who served which stage when, what each stage has now, and what happened in all."""

import time
from collections import defaultdict

from hetplanner.plots.live import SwarmLife
from hetplanner.runs.swarm_history import SwarmHistory
from hetplanner.ui.models.run import RunModel
from hetplanner.ui.models.session import Session
from hetplanner.ui.models.texts import seconds_text
from hetplanner.ui.views.cards import Words, card, chart, full_width, html_pane, page, set_html
from hetplanner.ui.views.run.section import Section
from hetplanner.ui.views.run.tables import html_table, note

HEIGHT = 360
MAX_NAMES = 12
NO_SWARM = "This run is no swarm: its ranks and stages stay as its plan says. An elastic plan makes one."
NAMES = {
    "join": "peers that came", "gone": "gone", "move": "moves", "not closed": "attempts given up", "garbage": "garbage",
    "refused": "refused", "trainer lost": "trainers lost", "restart": "coordinators restarted",
    "set back": "set back to a checkpoint", "trouble": "troubles",
}  # fmt: skip


class Swarm(Section):
    """A timeline of the peers, totals, and a row for every stage."""

    signals = ("detail_changed",)

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        self.life = SwarmLife(height=HEIGHT, dark=dark)
        self.figures = [self.life]
        self.totals = Words()
        self.stages = html_pane(margin=(4, 14, 12, 14))
        self.view = page(
            full_width(card("Peers over time, in the colour of their stage", chart(self.life), self.totals.view)),
            full_width(card("Stages now", self.stages)),
        )

    def show(self) -> None:
        """As far as the coordinator has told."""
        detail, reader, status = self.model.detail, self.model.reader, self.model.status
        history = detail.swarm if detail is not None else None
        if detail is None or reader is None or status is None or history is None:
            self.life.update(None)
            self.totals.set("" if detail is None else NO_SWARM)
            set_html(self.stages, note("comes with the first peers" if detail is None else "none of a swarm"))
            return
        self.life.update(history, None if status.is_over else time.time())
        self.totals.set(totals_text(history))
        set_html(self.stages, stage_table(history, len(reader.any_plan.stages), status.is_over))


def totals_text(history: SwarmHistory) -> str:
    """What happened so far, in a line."""
    last = history.commits[-1] if history.commits else None
    parts = [f"steps committed: {last.step if last is not None else 0}"]
    parts += [f"{words}: {history.counts[kind]}" for kind, words in NAMES.items() if history.counts.get(kind)]
    if history.damaged:
        parts.append(f"damaged lines: {history.damaged}")
    return ", ".join(parts) + ("; paused until every stage has a peer" if history.paused else "") + "."


def stage_table(history: SwarmHistory, num_stages: int, is_over: bool) -> str:
    """HTML: a row for every stage with its peers; one that nobody serves stands out while the run goes on."""
    peers: dict[tuple[int, str], list[str]] = defaultdict(list)
    for stay in history.now.values():
        peers[stay.stage, stay.state].append(stay.peer)
    if is_over:
        return note("the run is over: nobody serves")
    stages = sorted({*range(num_stages), *(stage for stage, _ in peers)})
    since = _last_changes(history)
    rows = []
    for s in stages:
        serving = peers[s, "serving"]
        joining = [*peers[s, "joining"], *peers[s, "waiting"]]
        changed = seconds_text(max(0.0, time.time() - since[s])) + " ago" if s in since else "–"
        rows.append([f"stage {s}", _names(serving), _names(joining), str(len(serving)), str(len(joining)), changed])
    head = ["", "serving", "joining or waiting", "serve", "join", "last change"]
    return html_table(head, rows, numbers=3, bad=[row[3] == "0" for row in rows], height=420)


def _last_changes(history: SwarmHistory) -> dict[int, float]:
    """Unix time at which somebody last came to or went from each stage."""
    found: dict[int, float] = {}
    for stay in history.stays:
        found[stay.stage] = max(found.get(stay.stage, 0.0), stay.start_s, stay.end_s or 0.0)
    return found


def _names(peers: list[str]) -> str:
    shown = ", ".join(peer[:40] for peer in peers[:MAX_NAMES])
    return (shown + (f" and {len(peers) - MAX_NAMES} more" if len(peers) > MAX_NAMES else "")) or "nobody"
