"""The Simulate page: one step of the plan span by span, and controls that derive another plan from it."""

from typing import Any

import panel as pn

from hetplanner.plots.live import LinkLoads, MemoryCurves, StageShares, StepGantt
from hetplanner.ui.plan.models.elastic import swarm_words
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.texts import against_text, percent_text, seconds_text
from hetplanner.ui.shell.views.page_view import PageView
from hetplanner.ui.simulate.controls import ControlsPanel
from hetplanner.ui.widgets.binding import on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import (
    FONT,
    Coloured,
    MetricRow,
    Words,
    card,
    chart,
    frame,
    full_width,
    html_pane,
    page,
    set_html,
    side_by_side,
    toolbar,
)
from hetplanner.ui.widgets.deferred import Deferred
from hetplanner.ui.widgets.island import Island
from hetplanner.ui.widgets.tools import Tools, save_tools, tool
from hetplanner.units import short_bytes

ORIGINAL = "the plan"
CHANGE = "Change a control to derive another plan from this one; it is simulated at once."


class SimulateView(PageView):
    """Controls, numbers and figures; redrawn only while the page is looked at."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model = app, app.simulate
        self.gantt = StepGantt(height=430)
        self.shares, self.links, self.memory = StageShares(), LinkLoads(), MemoryCurves()
        self.figures: list[Coloured] = [self.gantt, self.shares, self.links, self.memory]
        self.metrics = MetricRow("Step time", "Idle", "Memory in use", "Busiest link")
        self.hint = Words(margin=(4, 14, 8, 14))
        self.link_note = html_pane(margin=(0, 14, 8, 14))
        self.controls = ControlsPanel(self.model, margin=(6, 14, 0, 14))
        depth = {"less": lambda: self.model.shift_depths(-1), "more": lambda: self.model.shift_depths(1),
                 "fill": self.model.fill_memory}  # fmt: skip
        self.depth = Tools(
            tool("less", "In flight −1", "One micro-batch less in flight on every stage"),
            tool("more", "In flight +1", "One micro-batch more in flight on every stage"),
            tool("fill", "Fill memory", "As many in flight as the devices have room for"),
            acts=depth, margin=(8, 12),
        )  # fmt: skip
        self.tools = Tools(
            tool("perfetto", "Perfetto", "Save the step as a trace file for ui.perfetto.dev"),
            *save_tools(self.gantt, "step"),
            acts={"perfetto": self.model.ask_perfetto}, margin=(6, 4),
        )  # fmt: skip
        self.pipeline = ControlsPanel(self.model, ("pipeline",), sizing_mode=None, width=140, height=44, margin=(0, 6))
        self.save = Button(label="Save derived plan", icon="save", variant="contained", margin=(8, 6))
        self.reset = Button(label="Back to the plan", icon="undo", variant="outlined", margin=(8, 6))
        self._stale = True
        self._drawn: tuple[Any, ...] = ()
        self._rest_is_due = False
        self._draw_soon = Deferred()(self._draw_rows)
        self._wire()
        self.view = self._layout()
        self.show()

    # -- widgets ----------------------------------------------------------------------------------

    def _wire(self) -> None:
        model = self.model
        on_click(self.save, lambda _: self.app.save_derived())
        on_click(self.reset, lambda _: model.reset())
        model.param.watch(self.changed, ["original", "shown_changed", "busy"])
        self.app.session.param.watch(self.changed, "elastic")
        model.param.watch(self._draw_rows, "pipeline")
        model.param.watch(self._show_words, "errors_changed")
        model.param.watch(lambda _: self.tools.send_file("step-trace.json", model.perfetto), "perfetto_ready")

    def _layout(self) -> Island:
        self.hint.view.styles = {"flex": "1 1 380px", "min-width": "0"}
        actions = toolbar(self.hint.view, self.depth, pn.Row(self.reset, self.save, margin=0))

        def figure_card(title: str, live: Coloured, name: str, *more: Any) -> pn.Column:
            return card(title, chart(live), *more, tools=Tools(*save_tools(live, name), margin=(6, 4)))

        above = pn.Row(self.pipeline, self.tools, margin=0)
        gantt = card("One step, simulated", chart(self.gantt), tools=above)
        return page(
            self.metrics.view,
            full_width(frame(self.controls, actions)),
            full_width(gantt),
            side_by_side(
                figure_card("Where each stage's time goes", self.shares, "stages"),
                figure_card("Busiest links", self.links, "links", self.link_note),
            ),
            full_width(figure_card("Memory over the step", self.memory, "memory")),
        )

    # -- redrawing --------------------------------------------------------------------------------

    def beat(self) -> None:
        """Takes answers, draws what was put off while the page was hidden, and follows the zoom."""
        if self._rest_is_due and self.app.session.page == "simulate":
            self._draw_rest()
        self.model.start()
        self.model.poll()
        if self.app.session.page != "simulate":
            return
        if self._stale:
            self.show()
        self.gantt.follow_zoom()

    def changed(self, *_: Any) -> None:
        """New content: drawn now, or when the page is looked at."""
        self._stale = True
        if self.app.session.page == "simulate":
            self.show()

    def show(self) -> None:
        """Numbers and figures of what is shown."""
        self._stale = False
        self._show_words()
        plan, replay = self.model.shown, self.model.replay
        if plan is None or replay is None:
            plan = replay = None
            self.metrics.clear()
        if self._drawn and self._drawn[0] is plan and self._drawn[1] is replay:
            return
        self._drawn = (plan, replay)
        if plan is not None:
            self._show_numbers()
            self._draw_soon()
        else:
            self._draw_rows()

    def _draw_rest(self) -> None:
        """The figures below, a beat later: drawn with the others, they would keep a person waiting for the first."""
        self._rest_is_due = False
        plan, replay = self._drawn or (None, None)
        self.memory.update(plan, replay, self.model.pipeline)
        self.shares.update(plan, replay)
        count = self.links.update(plan, replay)
        drawn = len(self.links.total_source.data["y"])
        # Not by `Words`, which hides itself: shown again before it was ever drawn, it would stop Bokeh's whole patch.
        words = f"the busiest {drawn} of {count} links in use and NICs" if count else ""
        set_html(self.link_note, f'<div style="{FONT}font-size:12px;opacity:.8">{words}</div>')

    def _draw_rows(self, *_: Any) -> None:
        plan, replay = self.model.shown, self.model.replay
        if plan is None or replay is None:
            self.gantt.show(None, None)
        else:
            self.gantt.show(plan, replay, self.model.pipeline)
        self._rest_is_due = True

    def _show_words(self, *_: Any) -> None:
        model = self.model
        self.save.disabled = not model.can_save
        self.reset.disabled = model.original is None or (not model.changes and not model.errors)
        nothing = model.shown is None
        self.depth.disable(*(("less", "more", "fill") if nothing or model.schedule == "gpipe" else ()))
        self.tools.disable(*(("perfetto", "step") if nothing else ()))
        if model.original is None:
            self.hint.set("No plan yet: press Search at the left, or upload a plan file on the Export page.")
        elif model.errors and model.shown is not None:
            self.hint.set("The figures below show the last plan that could be simulated.")
        elif nothing:
            self.hint.set("Simulating …")
        elif model.changes:
            saved = "" if model.can_save else " · saved: Run and Export use it"
            self.hint.set(f"{'; '.join(model.changes)}{saved}", bold="Derived:")
        else:
            self.hint.set(swarm_words(model.swarm) or CHANGE, bold="A swarm:" if model.swarm else "")

    def _show_numbers(self) -> None:
        model = self.model
        plan, replay, base = model.shown, model.replay, model.base
        assert plan is not None
        assert replay is not None
        derived = model.is_derived and base is not None
        words, colour = "simulated, from all ranks idle", ""
        if derived and base is not None:
            words = against_text(replay.mean_step_s, ORIGINAL, base.mean_step_s)
            colour = "good" if replay.mean_step_s < 0.995 * base.mean_step_s else ""
            colour = "warn" if replay.mean_step_s > 1.005 * base.mean_step_s else colour
        elif plan.estimate is not None:
            words = f"simulated; estimated {seconds_text(plan.estimate.step_s)}"
        if plan.local_steps > 1:
            words += f"; mean of {plan.local_steps} steps, one that averages is drawn"
        self.metrics.set("Step time", seconds_text(replay.mean_step_s), words, colour)
        words = f"simulated; {percent_text(replay.share('bubble'), 0)} waiting for others"
        before = f"{ORIGINAL}: {percent_text(base.idle)}" if derived and base else words
        self.metrics.set("Idle", percent_text(replay.idle), before)
        self._show_memory()
        busy = replay.busy_s_LR.sum(axis=1)
        if len(busy):
            k = int(busy.argmax())
            ends = f"{plan.ranks[int(replay.source_L[k])]} → {plan.ranks[int(replay.target_L[k])]}"
            moved = short_bytes(float(replay.bytes_LR[k].sum()))
            self.metrics.set("Busiest link", percent_text(float(busy[k]) / replay.step_s, 0), f"{moved}, {ends}")
        else:
            self.metrics.set("Busiest link", "–", "nothing travels")

    def _show_memory(self) -> None:
        plan, replay = self.model.shown, self.model.replay
        assert plan is not None
        assert replay is not None
        if plan.estimate is None:
            self.metrics.set("Memory in use", "–")
            return
        limits = {e.device: e.limit_bytes for e in plan.estimate.devices}
        peaks = zip(plan.ranks, replay.memory_NB.max(axis=1).tolist(), strict=True)
        device, peak = max(peaks, key=lambda row: row[1] / limits[row[0]])
        text = f"{short_bytes(peak)} of {short_bytes(limits[device])}"
        self.metrics.set(
            "Memory in use", text, f"{device}, at its simulated peak", "warn" if peak > 0.9 * limits[device] else ""
        )
