"""The swarm of a run: which way its micro-batches go, which peer served which stage when, present peers, totals.

A peer can be made to leave, killed, and brought back, to see how the others go on.
"""

import time
from collections import defaultdict
from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.plots.data.swarms.swarm_wiring import speed_text
from hetplanner.plots.live import SwarmLife, SwarmWiring
from hetplanner.runs.reading.swarm_flow import PeerWork, SwarmFlow
from hetplanner.runs.reading.swarm_history import Stay, SwarmHistory
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.run.views.tables import html_table, note
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import seconds_text
from hetplanner.ui.watch import RunDetail
from hetplanner.ui.widgets.binding import on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import ErrorWords, Words, card, chart, full_width, html_pane, page, set_html, show_if

HEIGHT = 360
MAX_NAMES = 12
MAX_PEERS = 300
NO_SWARM = "This run is no swarm: its ranks and stages stay as its plan says. An elastic plan makes one."
MEASURED = (
    "Measured: micro-batches per second of a peer's own forward and backward, of those whose gradients were committed."
    " By the plan: the cost model's number for the planned device"
)
NOT_EMULATED = "; this run's peers are not slowed to it."
NAMES = {
    "join": "peers joined", "left": "left", "lost": "lost", "cut off": "cut off",
    "leaves": "asked to leave", "gone": "gone", "move": "moves", "not closed": "attempts given up",
    "cut": "links cut", "work lost": "rounds short of work",
    "garbage": "garbage", "refused": "refused", "trainer lost": "trainers lost", "restart": "coordinators restarted",
    "restarted": "processes started again", "not restarted": "processes lost for good", "preempted": "preempted",
    "set back": "set back to a checkpoint", "trouble": "problems",
}  # fmt: skip


class Swarm(Section):
    """The wiring, a timeline of the peers, totals, a row for every stage and peer, and a choice of peers to end."""

    signals = ("detail_changed",)

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        self.wiring, self.life = SwarmWiring(height=HEIGHT, dark=dark), SwarmLife(height=HEIGHT, dark=dark)
        self.figures = [self.wiring, self.life]
        self.totals, self.steps = Words(), Words()
        self.stages, self.peers = html_pane(margin=(4, 14, 12, 14)), html_pane(margin=(4, 14, 12, 14))
        self.guard = PeerButtons(model, session)
        self.view = page(
            full_width(card("Wiring: micro-batches from peer to peer", chart(self.wiring), self.steps.view)),
            full_width(card("Peers over time, in the colour of their stage", chart(self.life), self.totals.view)),
            full_width(card("Stages now", self.stages)),
            full_width(card("Peers now", self.guard.view, self.peers)),
        )

    def show(self) -> None:
        """As far as the coordinator has told."""
        detail, reader, status = self.model.detail, self.model.reader, self.model.status
        history = detail.swarm if detail is not None else None
        if detail is None or reader is None or status is None or history is None:
            self.life.update(None)
            self.wiring.update(None)
            self.totals.set("" if detail is None else NO_SWARM)
            self.steps.set("")
            for pane in (self.stages, self.peers):
                set_html(pane, note("shown from the first peers" if detail is None else "this run is no swarm"))
            return
        num_stages = len(reader.any_plan.stages)
        self.life.update(history, None if status.is_over else time.time(), detail.names)
        present = None if status.is_over else {(stay.peer, stay.stage) for stay in history.now.values()}
        self.wiring.update(detail.flow, num_stages, present, detail.expected, detail.names)
        self.steps.set(flow_text(detail.flow))
        self.totals.set(totals_text(history))
        set_html(self.stages, stage_table(detail, num_stages, status.is_over))
        set_html(self.peers, peer_table(detail, status.is_over, emulated=reader.config.emulate_links))


class PeerButtons:
    """Which peer, the two things that can be done to it, and beside them what came of it."""

    def __init__(self, model: RunModel, session: Session) -> None:
        self._model, self._peers, self._session = model, model.peers, session
        self.name = pmui.Select(label="Peer", options=[], width=260, size="small", margin=(8, 10))
        self.drain = Button(label="Let it leave", icon="logout", variant="outlined", margin=(12, 4))
        self.kill = Button(label="Kill it", icon="bolt", variant="outlined", color="error", margin=(12, 4))
        self.back = Button(label="Bring it back", icon="login", variant="outlined", margin=(12, 4))
        self.words, self.refusal = Words(margin=(2, 14)), ErrorWords()
        on_click(self.drain, lambda _: self._peers.ask("drain"))
        on_click(self.kill, lambda _: self._peers.ask("kill"))
        on_click(self.back, lambda _: self._peers.ask("rejoin"))
        self.name.param.watch(self._chosen, "value")
        row = pn.FlexBox(self.name, self.drain, self.kill, self.back, flex_wrap="wrap", align_items="center", margin=0)
        self.view = pn.Column(row, self.words.view, self.refusal.view, sizing_mode="stretch_width", margin=0)
        self._peers.param.watch(self.show, ["stage_of", "gone", "peer", "words", "refusal", "asking"])
        model.param.watch(self.show, "status")
        session.param.watch(self.show, "unlocked")
        self.show()

    def _chosen(self, event: Any) -> None:
        with pn.io.hold():
            self._peers.param.update(peer=event.new or "", words="", refusal="")

    def show(self, *_: Any) -> None:
        """The peers that can be chosen, and whether any action is possible."""
        peers = self._peers
        # Labels are names alone: a label that changes while the menu is open makes Panel refuse the choice.
        options = {"choose one": ""} | {name: name for name in sorted([*peers.stage_of, *peers.gone])}
        if self.name.options != options or self.name.value != peers.peer:
            self.name.param.update(options=options, value=peers.peer)
        can = bool(peers.peer) and self._model.can_stop and self._session.unlocked and not peers.asking
        is_gone = peers.peer in peers.gone
        self.drain.disabled = self.kill.disabled = not can or is_gone
        self.back.disabled = not can or not is_gone
        show_if(self.view, self._model.can_stop and bool(peers.stage_of or peers.gone))
        locked = (
            ""
            if self._session.unlocked
            else "Type the launch token above to have a peer leave or come back, or to kill it."
        )
        self.words.set(peers.words or locked or peers.warning or peers.place)
        self.refusal.set(peers.refusal)


def totals_text(history: SwarmHistory) -> str:
    """What happened so far, in a line."""
    last = history.commits[-1] if history.commits else None
    parts = [f"steps committed: {last.step if last is not None else 0}"]
    parts += [f"{words}: {history.counts[kind]}" for kind, words in NAMES.items() if history.counts.get(kind)]
    if history.damaged:
        parts.append(f"damaged lines: {history.damaged}")
    return ", ".join(parts) + ("; paused until every stage has a peer" if history.paused else "") + "."


def flow_text(flow: SwarmFlow) -> str:
    """Of which steps the wiring is, and what it leaves out."""
    if not flow.num_steps:
        return ""
    steps = f"Step {flow.last_step}" if flow.num_steps == 1 else f"Steps {flow.first_step} to {flow.last_step}"
    again = sum(flow.redone.values())
    left_out = f" {again} were done again in part, and are in no line where two passes meet." if again else ""
    return f"{steps}: a line for the micro-batches that went through both in one pass.{left_out}"


def stage_table(detail: RunDetail, num_stages: int, is_over: bool) -> str:
    """HTML: a row for every stage with its peers; one without a peer stands out while the run goes on."""
    history = detail.swarm
    if is_over or history is None:
        return note("the run is over: no peer serves")
    peers: dict[tuple[int, str], list[str]] = defaultdict(list)
    for stay in history.now.values():
        peers[stay.stage, stay.state].append(stay.peer)
    stages = sorted({*range(num_stages), *(stage for stage, _ in peers)})
    since, speeds = _last_changes(history), _speeds(detail.flow)
    rows = []
    for s in stages:
        serving = peers[s, "serving"]
        joining = [*peers[s, "joining"], *peers[s, "waiting"]]
        changed = seconds_text(max(0.0, time.time() - since[s])) + " ago" if s in since else "–"
        measured = [speed for peer in serving if (speed := speeds.get((peer, s))) is not None]
        expected = [speed for peer in serving if (speed := _expected(detail, peer, s)) is not None]
        rates = [speed_text(sum(rate) if rate else None) for rate in (measured, expected)]
        counts = [str(len(serving)), str(len(joining))]
        shown = [_names([detail.names.get(peer, peer) for peer in each]) for each in (serving, joining)]
        rows.append([f"stage {s}", *shown, *counts, *rates, changed])
    head = ["", "serving", "joining or waiting", "serve", "join", "measured", "by the plan", "last change"]
    return html_table(head, rows, numbers=5, bad=[row[3] == "0" for row in rows], height=420)


def peer_table(detail: RunDetail, is_over: bool, *, emulated: bool) -> str:
    """HTML: a row for every peer that is there, with its measured speed beside the expected one."""
    history, flow = detail.swarm, detail.flow
    if is_over or history is None:
        return note("the run is over: no peer is left")
    place = {(p.peer, p.stage): i for i, p in enumerate(flow.peers)}
    rows = []
    for stay in sorted(history.now.values(), key=lambda stay: (stay.stage, stay.peer))[:MAX_PEERS]:
        i = place.get((stay.peer, stay.stage))
        work = flow.peers[i] if i is not None else PeerWork(stay.peer, stay.stage, 0, 0.0)
        share = f"{flow.share(i):.0%}" if i is not None else "–"
        rates = [speed_text(speed) for speed in (work.speed, _expected(detail, stay.peer, stay.stage))]
        name, state = detail.names.get(stay.peer, stay.peer)[:80], _state(stay, history)
        rows.append([f"stage {stay.stage}", name, state, *rates, share, str(work.micro_batches)])
    head = ["", "peer", "", "measured", "by the plan", "of its stage", "micro-batches"]
    words = MEASURED + ("." if emulated else NOT_EMULATED)
    return html_table(head, rows, numbers=4, height=420) + note(words)


def _state(stay: Stay, history: SwarmHistory) -> str:
    return f"{stay.state}, asked to leave" if stay.peer in history.draining else stay.state


def _speeds(flow: SwarmFlow) -> dict[tuple[str, int], float | None]:
    return {(peer.peer, peer.stage): peer.speed for peer in flow.peers}


def _expected(detail: RunDetail, peer: str, stage: int) -> float | None:
    speeds = detail.expected.get(peer, ())
    return speeds[stage] if stage < len(speeds) else None


def _last_changes(history: SwarmHistory) -> dict[int, float]:
    """Unix time at which a peer last came to or left each stage."""
    found: dict[int, float] = {}
    for stay in history.stays:
        found[stay.stage] = max(found.get(stay.stage, 0.0), stay.start_s, stay.end_s or 0.0)
    return found


def _names(peers: list[str]) -> str:
    shown = ", ".join(peer[:40] for peer in peers[:MAX_NAMES])
    return (shown + (f" and {len(peers) - MAX_NAMES} more" if len(peers) > MAX_NAMES else "")) or "no peer"
