"""The Simulate page: one step of the plan span by span, and controls that derive another plan from it."""

from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.plots.live import LinkLoads, MemoryCurves, StageShares, StepGantt
from hetplanner.simulator.terms import TERMS
from hetplanner.ui.models.app import PlannerApp
from hetplanner.ui.models.simulate import AS_PLANNED, FIELDS
from hetplanner.ui.models.texts import against_text, percent_text, seconds_text
from hetplanner.ui.views.binding import bind, on_click
from hetplanner.ui.views.cards import (
    COLOURS,
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
from hetplanner.ui.views.saving import TextSaver, figure_buttons
from hetplanner.units import short_bytes

_FIELD: dict[str, Any] = {"size": "small", "margin": (6, 6, 0, 6)}
_BUTTON: dict[str, Any] = {"size": "small", "margin": (9, 3, 0, 3)}
ORIGINAL = "the plan"
_SCHEDULE_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved (2 stages a device)"}


class SimulateView:
    """Controls, numbers and figures; redrawn only while the page is looked at."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model = app, app.simulate
        self.gantt = StepGantt(height=430)
        self.shares, self.links, self.memory = StageShares(), LinkLoads(), MemoryCurves()
        self.figures: list[Coloured] = [self.gantt, self.shares, self.links, self.memory]
        self.metrics = MetricRow("Step time", "Bubble", "Tightest memory", "Busiest link")
        self.hint = Words(margin=(4, 14, 8, 14))
        self.error = html_pane(margin=(4, 14, 0, 14))
        self.saver = TextSaver()
        self.link_note = Words(margin=(0, 14, 8, 14), size=12)
        self._stale = True
        self._make_controls()
        self._wire()
        self.view = self._layout()
        self.show()

    # -- widgets ----------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        model, session = self.model, self.app.session

        def choice(name: str, label: str, width: int, hint: str = "") -> Any:
            return bind(pmui.Select(label=label, width=width, description=hint, options=self._options(name), **_FIELD),
                        model, name, session)  # fmt: skip

        self.schedule = choice("schedule", "Schedule", 150)
        self.micro_batch = choice("micro_batch", "Micro-batch", 110)
        self.recompute = choice("recompute", "Recompute", 130, "Activations are computed again in the backward pass.")
        self.messages = choice("messages", "Between stages", 140, "Codec of activations and their gradients.")
        self.reductions = choice("reductions", "Reductions", 140, "Codec of gradients between replicas.")
        self.ratio = bind(pmui.FloatInput(label="Top-k ratio", width=110, start=1.0, end=1e5, **_FIELD),
                          model, "ratio", session)  # fmt: skip
        self.depth = bind(
            pmui.TextInput(
                label="In flight, by stage", width=210,
                description="Micro-batches that each stage may hold: one number, or one for each stage.", **_FIELD,
            ),
            model, "in_flight", session,
        )  # fmt: skip
        self.pipeline = bind(pmui.Select(label="Rows", width=150, options={"all ranks": None}, size="small",
                                         margin=(4, 6)), model, "pipeline", session)  # fmt: skip
        self.less = pmui.Button(label="−1", variant="outlined", **_BUTTON)
        self.more = pmui.Button(label="+1", variant="outlined", **_BUTTON)
        self.fill = pmui.Button(label="Fill memory", variant="text", **_BUTTON)
        self.save = pmui.Button(label="Save derived plan", icon="save", variant="contained", margin=(8, 6))
        self.reset = pmui.Button(label="Back to the plan", icon="undo", variant="outlined", margin=(8, 6))
        self.perfetto = pmui.Button(
            label="Perfetto", description="Save the step as a trace for ui.perfetto.dev", variant="text", size="small",
            margin=(2, 2),
        )  # fmt: skip

    def _options(self, name: str) -> Any:
        objects = self.model.param[name].objects
        if name == "schedule":
            return {_SCHEDULE_NAMES[value]: value for value in objects}
        if name == "pipeline":
            return {"all ranks": None} | {f"pipeline {r}": r for r in objects if r is not None}
        return {_WORDS.get(value, str(value)): value for value in objects}

    def _wire(self) -> None:
        model = self.model
        on_click(self.less, lambda _: model.shift_depths(-1))
        on_click(self.more, lambda _: model.shift_depths(1))
        on_click(self.fill, lambda _: model.fill_memory())
        on_click(self.save, lambda _: self.app.save_derived())
        on_click(self.reset, lambda _: model.reset())
        on_click(self.perfetto, lambda _: model.ask_perfetto())
        model.param.watch(self._new_choices, "choices_changed")
        model.param.watch(self.changed, ["original", "shown_changed", "busy"])
        model.param.watch(self._draw_rows, "pipeline")
        model.param.watch(self.show_errors, "errors_changed")
        model.param.watch(lambda _: self.saver.save("step-trace.json", model.perfetto), "perfetto_ready")
        model.param.watch(self._show_ratio, ["messages", "reductions"])
        self._show_ratio()
        self.show_errors()

    def _layout(self) -> pn.Column:
        depth = pn.Row(self.depth, self.less, self.more, self.fill, margin=0)
        choices = (self.schedule, self.micro_batch, self.recompute, self.messages, self.reductions, self.ratio)
        fields = pn.FlexBox(*choices, depth, flex_wrap="wrap", justify_content="flex-start",
                            sizing_mode="stretch_width", margin=(2, 6))  # fmt: skip
        self.hint.view.styles = {"flex": "1 1 380px", "min-width": "0"}
        actions = toolbar(self.hint.view, pn.Row(self.reset, self.save, margin=0))
        tools = toolbar(self.pipeline, pn.Row(self.perfetto, figure_buttons(self.gantt, "step"), margin=0))

        def figure_card(title: str, live: Coloured, name: str, *more: Any) -> pn.Column:
            buttons = pn.Row(pn.Spacer(sizing_mode="stretch_width"), figure_buttons(live, name), margin=(-30, 6, 0, 0))
            return card(title, buttons, chart(live), *more)

        return page(
            self.metrics.view,
            full_width(frame(fields, self.error, actions)),
            full_width(card("One step, simulated", tools, chart(self.gantt), self.saver.view)),
            side_by_side(
                figure_card("Where each stage's time goes", self.shares, "stages"),
                figure_card("Busiest links", self.links, "links", self.link_note.view),
            ),
            full_width(figure_card("Memory over the step", self.memory, "memory")),
        )

    # -- redrawing --------------------------------------------------------------------------------

    def beat(self) -> None:
        """Takes answers, draws what was put off while the page was hidden, and follows the zoom."""
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
        if (plan, replay) == getattr(self, "_drawn", ()):
            return
        self._drawn = (plan, replay)
        self._draw_rows()
        self.shares.update(plan, replay)
        count = self.links.update(plan, replay)
        self.link_note.set(f"{min(count, len(self.links.total_source.data['y']))} of {count} links in use"
                           if count else "")  # fmt: skip
        if plan is not None:
            self._show_numbers()

    def _draw_rows(self, *_: Any) -> None:
        plan, replay = self.model.shown, self.model.replay
        if plan is None or replay is None:
            self.gantt.show(None, None)
            self.memory.update(None, None)
            return
        self.gantt.show(plan, replay, self.model.pipeline)
        self.memory.update(plan, replay, self.model.pipeline)

    def _show_words(self) -> None:
        model = self.model
        self.save.disabled = not model.can_save
        self.reset.disabled = model.original is None or (not model.changes and not model.errors)
        for button in (self.less, self.more, self.fill, self.perfetto):
            button.disabled = model.shown is None
        gpipe = model.schedule == "gpipe"
        self.depth.disabled = self.less.disabled = self.more.disabled = self.fill.disabled = gpipe or not model.original
        if model.original is None:
            self.hint.set("No plan yet: press Search at the left, or upload a plan file on the Export page.")
        elif model.errors and model.shown is not None:
            self.hint.set("What is drawn below is the last plan that could be simulated.")
        elif model.changes:
            saved = "" if model.can_save else " · saved: Run and Export use it"
            self.hint.set(f"{'; '.join(model.changes)}{saved}", bold="Derived:")
        else:
            self.hint.set("Change a control to derive another plan from this one; it is simulated at once."
                          if model.shown else "Simulating …")  # fmt: skip

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
        network = float(replay.terms_s_NT[:, TERMS.index("pipeline_transfer")].mean()) / (replay.step_s or 1.0)
        words = f"of the ranks' time; {percent_text(network, 0)} more for the network"
        before = f"{ORIGINAL}: {percent_text(base.bubble)}" if derived and base else words
        self.metrics.set("Bubble", percent_text(replay.bubble), before)
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
            self.metrics.set("Tightest memory", "–")
            return
        limits = {e.device: e.limit_bytes for e in plan.estimate.devices}
        peaks = zip(plan.ranks, replay.memory_NB.max(axis=1).tolist(), strict=True)
        device, peak = max(peaks, key=lambda row: row[1] / limits[row[0]])
        text = f"{short_bytes(peak)} of {short_bytes(limits[device])}"
        self.metrics.set(
            "Tightest memory", text, f"{device}, at its peak", "warn" if peak > 0.9 * limits[device] else ""
        )

    def show_errors(self, *_: Any) -> None:
        """What was refused: its field turns red, and the line below says why."""
        for name in FIELDS:
            getattr(self, _WIDGETS.get(name, name)).error_state = name in self.model.errors
        lines = [
            f"<b>{escape(getattr(self, _WIDGETS.get(name, name)).label)}:</b> {escape(text)}"
            for name, text in self.model.errors.items()
        ]
        style = f"{FONT}font-size:13px;line-height:1.4;color:{COLOURS['bad']};overflow-wrap:anywhere"
        set_html(self.error, f'<div role="alert" style="{style}">{"<br>".join(lines)}</div>' if lines else "")
        self.error.visible = bool(lines)
        self._show_words()

    def _show_ratio(self, *_: Any) -> None:
        self.ratio.visible = "topk" in (self.model.messages, self.model.reductions)

    def _new_choices(self, *_: Any) -> None:
        """Another plan has other micro-batch sizes, schedules and pipelines."""
        widgets = {"micro_batch": self.micro_batch, "schedule": self.schedule, "pipeline": self.pipeline}
        for name, widget in widgets.items():
            options = self._options(name)
            value = widget.value if widget.value in options.values() else next(iter(options.values()))
            widget.param.update(options=options, value=value)


_WIDGETS = {"in_flight": "depth"}
_WORDS = {AS_PLANNED: AS_PLANNED, "none": "dense"}
