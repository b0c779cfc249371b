"""The Plan page: the search as it converges, the best allocation, what it costs and why."""

from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.plots.data.curves import left_out_of
from hetplanner.plots.live import AllocationGrid, ConvergenceCurve, CostBars, CrossLight, DeviceMap, MemoryBars, Replay
from hetplanner.ui.plan.models.elastic import swarm_words
from hetplanner.ui.plan.models.why import bottleneck_text
from hetplanner.ui.plan.views.explain import WhatIfCard, WhyCard
from hetplanner.ui.plan.views.free_shape import FreeShapeLine
from hetplanner.ui.plan.views.front import FrontCard
from hetplanner.ui.plan.views.kept import KeptCards
from hetplanner.ui.plan.views.search_history import AncestryCard, TriedCard
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.texts import (
    against_text,
    count_text,
    dollars_text,
    left_out_lines,
    percent_text,
    seconds_text,
    sources_text,
    value_text,
)
from hetplanner.ui.shell.views.page_view import PageView
from hetplanner.ui.widgets.binding import on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import (
    LONG_OPTIONS,
    MetricRow,
    Words,
    card,
    chart,
    frame,
    full_width,
    page,
    side_by_side,
    toolbar,
)
from hetplanner.ui.widgets.deferred import Deferred
from hetplanner.ui.widgets.island import Island
from hetplanner.units import short_bytes

HEIGHT = 330
MAP_HEIGHT = 455
"""As high as the curve with what stands under it."""
WORDS_HEIGHT = "calc(157px + max(0px, 1200px - 100vw) / 4)"
"""What a search says when it has ended has room from the start, on a narrow page more: nothing below moves then."""
_NONE = "–"
_POINT = "Point at a device, a stage or a site, here or on the map, to see it in all figures; click to hold it."


class PlanView(PageView):
    """Widgets and figures of the page; each watches one signal of the view-model and redraws only its own."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model = app, app.plan
        self.curve = ConvergenceCurve(height=HEIGHT)
        self.found = Words(margin=(0, 14, 4, 14))
        self.world = DeviceMap(height=MAP_HEIGHT)
        self.places = AllocationGrid(height=HEIGHT)
        self.bars = CostBars(height=HEIGHT)
        self.memory = MemoryBars(height=HEIGHT)
        self.replay = Replay(self.curve, self.world, self.places, self.bars)
        self.reasons, self.whatif, self.kept = WhyCard(app), WhatIfCard(app), KeptCards(app)
        self.front = FrontCard(app.front, HEIGHT)
        self.history = [TriedCard(app.plan, HEIGHT), AncestryCard(app.plan, HEIGHT)]
        self.light = CrossLight(self.world, self.places, self.memory, self._clicked)
        self.focus = Words(_POINT, margin=(0, 14, 8, 14))
        self.gone = Button(label="What if it is removed?", variant="outlined", disabled=True, margin=(0, 14, 8, 14))
        self.metrics = MetricRow("Step time", "Throughput", "Idle", "Tightest memory")
        self.swarm = Words(margin=(10, 14, 0, 14))
        self.why = Words(margin=(10, 14, 4, 14))
        self.free_shape = FreeShapeLine(app.free_shape)
        self.rehearse = Button(label="Rehearse here", icon="science", variant="contained", margin=(8, 6))
        self.export = Button(label="Export", icon="ios_share", variant="outlined", margin=(8, 6))
        self.recent = pmui.Select(
            label="Searches of this server",
            options={_NONE: ""},
            value="",
            size="small",
            width=250,
            margin=(10, 6),
            sx=LONG_OPTIONS,
        )
        self.figures = [
            self.curve,
            self.world,
            self.places,
            self.bars,
            self.memory,
            self.whatif.figure,
            self.front.figure,
        ]
        self.below = Island()
        self._wire()
        self.view = self._layout()

    def set_dark(self, dark: bool) -> None:
        """Figures that are made later have the theme too."""
        super().set_dark(dark)
        self.kept.set_dark(dark)
        for one in self.history:
            one.set_dark(dark)
        self.light.recolour()

    def beat(self) -> None:
        """See PageView."""
        if not self.below.parts:
            self.below.parts = self._cards_below()
        for one in self.history:
            one.beat()

    def _wire(self) -> None:
        model = self.model
        on_click(self.rehearse, lambda _: self.app.rehearse())
        on_click(self.export, lambda _: setattr(self.app.session, "page", "export"))
        on_click(self.gone, lambda _: self.app.explain.whatif.drop(self.app.explain.focus[1]))
        self.recent.param.watch(self._join, "value")
        self.app.explain.param.watch(self.show_focus, "focus")
        later, of_search = Deferred(), ["baselines_changed", "lower_bound", "state", "outdated"]
        model.param.watch(later(self.show_curve), ["points_changed", *of_search])
        model.param.watch(later(self.show_plan), ["plan", "cluster"])
        model.param.watch(later(self.show_costs), ["plan", "baselines_changed", "outdated"])
        model.param.watch(self.show_numbers, ["plan", "value", *of_search])
        model.param.watch(later(self.show_replay), ["state", "job_id"])
        model.param.watch(self.show_recent, ["job_id", "state"])
        model.param.watch(self.show_swarm, "plan")
        self.app.session.param.watch(self.show_swarm, "elastic")
        for show in (
            self.show_curve,
            self.show_plan,
            self.show_costs,
            self.show_numbers,
            self.show_recent,
            self.show_replay,
        ):
            show()
        self.show_swarm()

    def _layout(self) -> Island:
        tools = pn.Column(pn.Row(self.rehearse, self.export, margin=0), self.recent, margin=0)
        words = pn.Column(self.swarm.view, self.why.view, self.reasons.sentence.view, self.free_shape.view, margin=0)
        words.styles = {"flex": "1 1 380px", "min-width": "0", "min-height": WORDS_HEIGHT}
        row = toolbar(words, tools)
        row.param.update(flex_wrap="wrap-reverse", align_items="flex-end")  # buttons stand above words that grow
        return page(
            self.metrics.view,
            full_width(frame(row)),
            side_by_side(
                card(
                    "Convergence",
                    chart(self.curve),
                    pn.pane.Bokeh(self.replay.controls, sizing_mode="stretch_width"),
                    self.found.view,
                ),
                card("Best allocation on the map", chart(self.world)),
            ),
            side_by_side(
                card("Stage × replica", chart(self.places), self.focus.view, self.gone),
                card("Cost terms against baselines", chart(self.bars)),
            ),
            self.below,
        )

    def _cards_below(self) -> list[Any]:
        """What is below the window's edge; it is sent once the page above it is drawn."""
        return [
            side_by_side(self.reasons.card, card("Memory per device", chart(self.memory))),
            side_by_side(*(one.card for one in self.history)),
            full_width(self.whatif.card),
            full_width(self.front.card),
            full_width(self.kept.card),
            full_width(self.kept.comparison),
        ]

    def _clicked(self, focus: tuple[str, str]) -> None:
        with pn.io.hold():
            self.app.explain.set_focus(str(focus[0]), str(focus[1]))

    # -- redrawing --------------------------------------------------------------------------------

    def show_curve(self, *_: Any) -> None:
        """Best and mean of the search, baselines, bound."""
        unit = "$ per million tokens" if self.model.objective == "cost" else "s"
        model = self.model
        earlier = [search.points for search in model.earlier]
        left_out = left_out_of(model.objective, model.cluster)
        self.curve.update(
            model.points, model.baselines, model.lower_bound, unit=unit, earlier=earlier, left_out=left_out
        )
        self.found.set(model.found_text)

    def show_replay(self, *_: Any) -> None:
        """The improvements of a search that is over; while it goes on the figures follow it by themselves."""
        model = self.model
        moments = [] if model.searching else model.moments
        self.replay.update(moments, model.cluster, lambda v: value_text(v, model.objective), model.offset_s)

    def show_plan(self, *_: Any) -> None:
        """The best plan on the map, in the grid, in memory."""
        plan = self.model.plan
        cluster = plan.problem.cluster if plan is not None else self.model.cluster
        if cluster is not None:
            self.world.update(cluster, plan)
        self.places.update(plan)
        self.memory.update(plan)

    def show_swarm(self, *_: Any) -> None:
        """What is seen of an elastic plan, and what is not."""
        words = swarm_words(self.app.explain.swarm)
        self.swarm.set(words, bold="A swarm:" if words else "")

    def show_focus(self, *_: Any) -> None:
        """What is clicked on the map, in the grid or among the memory bars."""
        explain = self.app.explain
        self.light.show(explain.focus)
        self.focus.set(explain.focus_text or _POINT)
        self.gone.disabled = explain.focus[0] != "device"

    def show_costs(self, *_: Any) -> None:
        """Terms of the best plan and of the baselines."""
        estimates = {} if self.model.estimate is None else {"planned": self.model.estimate}
        baselines = {} if self.model.outdated else self.model.baseline_estimates
        self.bars.update(estimates | baselines)

    def show_numbers(self, *_: Any) -> None:
        """Metric cards, and the bottleneck by name."""
        plan, estimate = self.model.plan, self.model.estimate
        self.rehearse.disabled = self.model.searching
        self.export.disabled = self.app.session.plan is None and estimate is None
        if plan is None or estimate is None:
            self.metrics.clear()
            self.why.set(self._empty_words())
            return
        self._show_value()
        self.metrics.set("Throughput", f"{count_text(estimate.tokens_per_s)} {self._word}/s", self._price())
        self.metrics.set("Idle", percent_text(estimate.bubble), "of the devices' time, estimated")
        tight = max(estimate.devices, key=lambda d: d.peak_bytes / d.limit_bytes)
        share = tight.peak_bytes / tight.limit_bytes
        self.metrics.set(
            "Tightest memory",
            f"{short_bytes(tight.peak_bytes)} of {short_bytes(tight.limit_bytes)}",
            f"{plan.problem.worker_name(tight.device)} is the tightest",
            "bad" if share > 1 else "warn" if share > 0.9 else "",
        )
        sources = f"Compute seconds from {sources_text(plan.problem)}."
        notes = [note[:1].upper() + note[1:] for note in estimate.notes]
        lines = [bottleneck_text(estimate), sources, *left_out_lines(estimate), *notes]
        self.why.set("\n".join(lines), bold="Bottleneck:")

    def _show_value(self) -> None:
        model, estimate = self.model, self.model.estimate
        assert estimate is not None
        notes = []
        baseline = model.best_baseline
        if baseline is not None and model.value is not None:
            notes.append(against_text(model.value, *baseline))
        if model.bound and model.value:
            notes.append(f"no plan below {value_text(model.bound, model.objective)}")
        text = seconds_text(estimate.step_s)
        if model.objective != "step-time":
            notes.insert(0, f"objective {value_text(model.value, model.objective)}")
        good = baseline is not None and model.value is not None and model.value < baseline[1]
        self.metrics.set("Step time", text, " · ".join(notes), "good" if good else "")

    def _price(self) -> str:
        estimate = self.model.estimate
        assert estimate is not None
        return f"predicted · {dollars_text(estimate, self._word)}"

    @property
    def _word(self) -> str:
        """What the throughput counts."""
        return self.model.plan.problem.workload.token_word if self.model.plan is not None else "tokens"

    def _empty_words(self) -> str:
        if self.model.searching:
            return "The search is starting: baselines first, then the evolution."
        return (
            "Press Search: the best plan so far appears here during the search.\nAfterwards this shows the bottleneck,"
            " why the plan is good, and the cost of fixed stages or replicas."
        )

    # -- searches of other pages ------------------------------------------------------------------

    def show_recent(self, *_: Any) -> None:
        """The list of this server's searches."""
        # The first entry is none of them: a select without a value takes its first option when it is drawn.
        options = {_NONE: ""} | self.model.recent()
        chosen = self.model.job_id if self.model.job_id in options.values() else ""
        if options != self.recent.options or chosen != self.recent.value:
            self.recent.param.update(options=options, value=chosen)
        self.recent.disabled = len(options) == 1  # never hidden: what stands beside it would move

    def _join(self, event: Any) -> None:
        if event.new and event.new != self.model.job_id and not self.model.searching:
            with pn.io.hold():
                self.model.join(event.new)
