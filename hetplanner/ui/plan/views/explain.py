"""The Plan page's cards that explain: why this plan, and what if."""

from html import escape
from typing import Any

import panel as pn
import param
from panel_material_ui.theme import MaterialDesign

from hetplanner.plots.live import CostBars
from hetplanner.ui.plan.models.whatif import WhatIfModel
from hetplanner.ui.plan.models.why import Part
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.texts import percent_text
from hetplanner.ui.widgets.binding import at_once, bind, on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import COLOURS, FONT, Words, card, chart, heading, html_pane, set_html
from hetplanner.ui.widgets.controls import Controls, button
from hetplanner.ui.widgets.deferred import Deferred

_SMALL: dict[str, Any] = {"margin": (6, 6)}
_BAR = "color-mix(in srgb, var(--panel-primary-color) 70%, transparent)"
_TRACK = "color-mix(in srgb, var(--panel-on-surface-color) 9%, transparent)"
EMPTY_WHY = (
    "When a search has ended, this says which of the plan's choices its gain over a launcher's plan of the same shape"
    " comes from."
)
EMPTY_WHATIF = (
    "Drop a device, change a link, a codec or how many devices share layers: the new step time appears at once, without"
    " a search. The plan keeps all it can, so a search under the same changes may do better."
)
_CHOOSE = "choose …"
_NO_STEPS = ".bk-spin-btn { display: none !important }"
"""Its buttons for a step up and down have no names; the arrow keys do the same."""
_ARROW = """select.bk-input { background-image: url('data:image/svg+xml;utf8,<svg version="1.1" viewBox="0 0 25 20"\
 xmlns="http://www.w3.org/2000/svg"><path d="M 0,0 25,0 12.5,20 Z" fill="gray"/></svg>') !important }"""
"""A list's arrow: Panel's is black, on dark pages too."""
NO_PLAN = "Press Search first; what-if changes the best plan found."


def gain_bars(baseline: str, parts: list[Part]) -> str:
    """From the baseline's step to the plan's, a bar for every choice; HTML."""
    rows = _gain_row("as a launcher places them", None, baseline)
    rows += "".join(_gain_row(f"+ {part.name}", part.share, part.value) for part in parts)
    grid = (
        "display:grid;grid-template-columns:fit-content(45%) minmax(60px,1fr) max-content max-content;gap:7px 12px;"
        "align-items:center"
    )
    return (
        f'<div style="{FONT}font-size:13px;color:var(--panel-on-surface-color);{grid}">{rows}</div>'
        f'<div style="{FONT}font-size:12px;opacity:.72;margin-top:10px;color:var(--panel-on-surface-color)">'
        "The choice that gains most is made first, the next one on top of it.</div>"
    )


def _gain_row(name: str, share: float | None, value: str) -> str:
    width = f"{100 * min(max(share or 0.0, 0.0), 1.0):.1f}%"
    bar = (
        f'<div style="height:14px;border-radius:3px;background:{_TRACK}"><div style="height:14px;border-radius:3px;'
        f'width:{width};background:{_BAR}"></div></div>'
    )
    text = "" if share is None else percent_text(share, 0)
    return (
        f"<div>{escape(name)}</div><div>{bar if share is not None else ''}</div>"
        f'<div style="font-weight:600;text-align:right" data-gain="{escape(name)}">{escape(text)}</div>'
        f'<div style="text-align:right;opacity:.8">{escape(value)}</div>'
    )


class WhyCard:
    """Why this plan in a sentence, and where its gain comes from as bars."""

    def __init__(self, app: PlannerApp) -> None:
        self.model = app.explain.why
        self.sentence = Words(margin=(0, 14, 8, 14), size=14)
        self.bars = html_pane(margin=(6, 14, 14, 14))
        self.card = card("Where the gain comes from", self.bars)
        self.model.param.watch(self.show, ["plan", "gain", "error", "waiting"])
        self.show()

    def show(self, *_: Any) -> None:
        """The explanation as it stands."""
        model = self.model
        self.sentence.set(model.sentence, bold="Why this plan:" if model.sentence else "")
        if model.parts:
            set_html(self.bars, gain_bars(model.baseline, model.parts))
        else:
            text = model.sentence if model.gain is not None or model.error else EMPTY_WHY
            style = f"{FONT}font-size:13px;opacity:.8;color:var(--panel-on-surface-color)"
            set_html(self.bars, f'<div style="{style}">{escape(text)}</div>')


class WhatIfCard:
    """Changes on the left, what they do on the right."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model = app, app.explain.whatif
        self.figure = CostBars(height=170)
        self.drop = self._select("Drop a device", [_CHOOSE], 210)
        self.degree = self._select("Devices in a group", list(self.model.param.degree.objects), 210)
        self.link = self._select("Link", [""], 250)
        self.bandwidth = self._number("bandwidth_mbit_s", "Mbit/s")
        self.latency = self._number("latency_ms", "Latency (ms)")
        self.where = self._select("What is sent over", [""], 250)
        self.codec = self._select("Codec", list(self.model.param.codec.objects), 110)
        self.ratio = self._number("ratio", "Ratio (topk)")
        self.changes = Controls(self._remove, margin=(2, 6))
        self.answer = html_pane(margin=(6, 14, 4, 14), styles={"min-height": "60px"})
        self.bars = chart(self.figure)
        self.bars.visible = False
        self.again = Button(label="Plan again from here", icon="replay", variant="contained", **_SMALL)
        self.keep = Button(label="Keep this plan", icon="bookmark_add", variant="outlined", **_SMALL)
        self.clear = Button(label="Clear", icon="close", variant="text", **_SMALL)
        self._draw_soon = Deferred()(self._draw)
        self._wire()
        self.card = self._layout()
        self.show_choices()
        self.show_outcome()

    def _number(self, name: str, label: str) -> Any:
        bounds = self.model.param[name].bounds
        return pn.widgets.FloatInput(
            name=label,
            start=bounds[0],
            end=bounds[1],
            width=130,
            margin=(4, 6),
            design=MaterialDesign,
            stylesheets=[_NO_STEPS],
        )

    def _select(self, label: str, options: list[str], width: int) -> Any:
        # A plain one opens at once.
        return pn.widgets.Select(
            name=label, options=options, width=width, margin=(4, 6), design=MaterialDesign, stylesheets=[_ARROW]
        )

    def _wire(self) -> None:
        model, session = self.model, self.app.session
        bind(self.bandwidth, model, "bandwidth_mbit_s", session)
        bind(self.latency, model, "latency_ms", session)
        bind(self.codec, model, "codec", session)
        bind(self.ratio, model, "ratio", session)
        bind(self.degree, model, "degree", session)
        bind_choice(self.link, model, "link")
        bind_choice(self.where, model, "where")
        for choice in (self.drop, self.degree, self.link, self.where, self.codec):
            at_once(choice)
        self.drop.param.watch(self._drop, "value")
        on_click(self.again, lambda _: self.app.search_again())
        on_click(self.keep, lambda _: self.app.explain.keep_outcome())
        on_click(self.clear, lambda _: model.clear())
        model.param.watch(self.show_choices, ["plan", "changes", "codec"])
        model.param.watch(self.show_changes, "changes")
        model.param.watch(self.show_outcome, ["plan", "outcome", "error", "waiting", "changes"])
        self.app.plan.param.watch(self.show_outcome, "state")

    def _drop(self, event: Any) -> None:
        if event.new in self.model.droppable:
            with pn.io.hold():
                self.model.drop(event.new)
                self.drop.value = _CHOOSE

    def _remove(self, name: str, _: Any) -> None:
        self.model.remove(int(name))

    def _layout(self) -> pn.Column:
        def line(*parts: Any) -> pn.FlexBox:
            return pn.FlexBox(*parts, align_items="center", margin=0, sizing_mode="stretch_width")

        left = pn.Column(
            heading("Devices"),
            line(self.drop, self.degree),
            heading("Link, both ways"),
            line(self.link, self.bandwidth, self.latency),
            heading("Codec"),
            line(self.where, self.codec, self.ratio),
            styles={"flex": "1 1 420px", "min-width": "0"},
            margin=(0, 6),
        )
        right = pn.Column(
            line(self.again, self.keep, self.clear),
            self.changes,
            self.answer,
            self.bars,
            styles={"flex": "1 1 460px", "min-width": "0"},
            margin=(6, 6),
        )
        return card("What if", pn.FlexBox(left, right, sizing_mode="stretch_width", margin=(0, 0, 8, 0)))

    # -- redrawing --------------------------------------------------------------------------------

    def show_choices(self, *_: Any) -> None:
        """What can be dropped; fields that have no meaning now."""
        devices = [_CHOOSE, *self.model.droppable]
        if devices != self.drop.options:
            self.drop.options = devices
        nothing = self.model.plan is None
        for widget in (self.drop, self.degree, self.link, self.bandwidth, self.latency, self.where, self.codec):
            widget.disabled = nothing
        self.ratio.disabled = nothing or self.model.codec != "topk"

    def show_changes(self, *_: Any) -> None:
        """A button for every change takes it back."""
        texts = self.model.change_texts
        self.changes.put([button(str(i), f"{text} ✕", "Take this change back") for i, text in enumerate(texts)])

    def show_outcome(self, *_: Any) -> None:
        """The new step time, its change, its bottleneck."""
        model = self.model
        outcome = model.outcome
        set_html(self.answer, self._answer_html())
        self._draw_soon()
        self.again.disabled = outcome is None or self.app.plan.searching
        self.keep.disabled = outcome is None
        self.clear.disabled = not model.changes.changes

    def _draw(self) -> None:
        model = self.model
        outcome = model.outcome
        if outcome is not None and model.plan is not None and model.plan.estimate and outcome.plan.estimate:
            self.bars.visible = True  # and stays: its coming and going would move what is below
            self.figure.update({"now": model.plan.estimate, "what if": outcome.plan.estimate})
        else:
            self.figure.update({})

    def _answer_html(self) -> str:
        model = self.model
        style = f"{FONT}font-size:13px;line-height:1.5;color:var(--panel-on-surface-color);overflow-wrap:anywhere"
        if model.plan is None or not model.changes.changes:
            return f'<div style="{style};opacity:.8">{escape(NO_PLAN if model.plan is None else EMPTY_WHATIF)}</div>'
        if model.error:
            return f'<div style="{style};color:{COLOURS["bad"]}" role="alert">{escape(model.error)}</div>'
        if model.outcome is None:
            return f'<div style="{style};opacity:.8">Estimating …</div>'
        value, change = model.headline
        colour = {None: "inherit", True: COLOURS["good"], False: COLOURS["bad"]}[model.better]
        notes = "".join(f"<div>{escape(note)}</div>" for note in (*model.outcome.notes, *_lossy(model)))
        faded = "opacity:.5" if model.waiting else ""
        return (
            f'<div style="{style};{faded}"><span style="font-size:24px;font-weight:700;color:{colour}"'
            f' data-metric="what-if">{escape(value)}</span> &nbsp;<b>{escape(change)}</b>'
            f"<div><b>Bottleneck then:</b> {escape(model.bottleneck)}</div>"
            f"<div><b>Tightest memory then:</b> {escape(model.memory)}</div>"
            f'<div style="opacity:.8">{notes}</div></div>'
        )


def _lossy(model: WhatIfModel) -> tuple[str, ...]:
    estimate = model.outcome.plan.estimate if model.outcome is not None else None
    return () if estimate is None else estimate.notes


def bind_choice(widget: Any, model: param.Parameterized, name: str) -> None:
    """Links a select with a selector of the model whose choices change; trigger `name` when they do."""

    def to_widget(*_: Any) -> None:
        options, value = list(model.param[name].objects), getattr(model, name)
        if options != widget.options:
            widget.param.update(options=options, value=value)
        elif widget.value != value:
            widget.value = value

    def to_model(event: param.parameterized.Event) -> None:
        if event.new in model.param[name].objects and event.new != getattr(model, name):
            with pn.io.hold():
                setattr(model, name, event.new)

    model.param.watch(to_widget, name, onlychanged=False)
    widget.param.watch(to_model, "value")
    to_widget()
