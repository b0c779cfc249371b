"""Live figures: every update replaces data only, whatever there is to show."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bokeh.core.validation import check_integrity
from bokeh.document import Document
from bokeh.embed import components
from bokeh.models import GlyphRenderer, HoverTool

from hetplanner.cluster.link_edits import LinkEnds, set_link
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.model import Plan
from hetplanner.plan.trace import Span, Trace
from hetplanner.planners.search.ancestry import Ancestor
from hetplanner.planners.search.moments import Moment
from hetplanner.planners.search.tried import TriedShape
from hetplanner.plots import live
from hetplanner.plots.live.base import SMALL_ARRAY, empty_source, put
from hetplanner.plots.theme import SOURCE_COLOURS
from hetplanner.runs.reading.reader import Evaluation
from hetplanner.simulator.simulation import simulate
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, sites_cluster, small_cluster
from tests.support.plans.profiles import made_collectives, made_profile


def estimated(plan: Plan) -> Plan:
    return plan.replace(estimate=estimate_plan(plan))


ONE = estimated(chain_plan([16], []))
MANY = estimated(chain_plan([6, 5, 5], [3, 5, 7]))
LAYERS = made_profile(preset("tiny-gpt"))
EVENTS = [
    {"searched_s": i / 10, "evaluations": 10 * i, "best": 50 - i, "low": 52 - i, "median": 60 - i, "high": 64 - i}
    for i in range(20)
]

Update = Callable[[Any], None]
CASES: dict[str, tuple[Callable[..., Any], list[Update]]] = {
    "map": (
        live.DeviceMap,
        [
            lambda f: f.update(None),
            lambda f: f.update(small_cluster(1)),
            lambda f: f.update(small_cluster(70)),
            lambda f: f.update(None, ONE),
            lambda f: f.update(MANY.problem.cluster, MANY),
        ],
    ),
    "bandwidth": (
        live.LinkHeatmap,
        [lambda f: f.update(None), lambda f: f.update(small_cluster(1)), lambda f: f.update(small_cluster(9))],
    ),
    "latency": (
        lambda **options: live.LinkHeatmap("latency", **options),
        [lambda f: f.update(None), lambda f: f.update(small_cluster(1)), lambda f: f.update(small_cluster(9))],
    ),
    "known": (
        lambda **options: live.LinkHeatmap("known", **options),
        [
            lambda f: f.update(None),
            lambda f: f.update(small_cluster(9)),
            lambda f: f.show("latency"),
            lambda f: f.mark(LinkEnds("site", "site-0", "site-8")),
            lambda f: f.update(small_cluster(2)),
        ],
    ),
    "convergence": (
        live.ConvergenceCurve,
        [
            lambda f: f.update([]),
            lambda f: f.update(EVENTS[:1], {"rank order": 70.0}),
            lambda f: f.update(EVENTS, {"rank order": 70.0, "random": 5000.0}, 20.0, "$"),
            lambda f: f.update([{"searched_s": 1.0, "best": math.inf, "median": math.nan}], {"random": math.inf}),
            lambda f: f.update(EVENTS, {}, earlier=[EVENTS[:5], EVENTS[5:9]]),
        ],
    ),
    "tried": (
        live.TriedShapes,
        [
            lambda f: f.update([]),
            lambda f: f.update([TriedShape(2, 2, 1.5, 3)], "$ per million tokens"),
            lambda f: f.update([TriedShape(4, 16, 1.5, 9), TriedShape(3, None, 1.6, 1), TriedShape(2, 2, 80.0, 0)]),
        ],
    ),
    "ancestry": (
        live.Ancestry,
        [
            lambda f: f.update([]),
            lambda f: f.update([Ancestor("seed", 1.5, 0, 2, 2, ())], "cost"),
            lambda f: f.update([Ancestor("seed", 2.0, 9, 4, 4, ()), Ancestor("annealed", 1.5, 400, 4, None, (0,))]),
        ],
    ),
    "grid": (live.AllocationGrid, [lambda f: f.update(None), lambda f: f.update(ONE), lambda f: f.update(MANY)]),
    "costs": (
        live.CostBars,
        [
            lambda f: f.update({}),
            lambda f: f.update({"planned": ONE.estimate}),
            lambda f: f.update({"planned": ONE.estimate, "rank order": MANY.estimate}),
        ],
    ),
    "timeline": (
        live.Timeline,
        [
            lambda f: f.update(None),
            lambda f: f.update(Trace((), ("a",))),
            lambda f: f.update(simulate(ONE)),
            lambda f: f.update(simulate(MANY, steps=3)),
            lambda f: f.update(simulate(MANY, steps=3), step=1),
            lambda f: f.update(simulate(MANY, steps=3), follow=False),
        ],
    ),
    "loss": (
        live.LossCurve,
        [
            lambda f: f.update([], []),
            lambda f: f.update([0], [2.0]),
            lambda f: f.update([0, 1, 2], [2.0, math.nan, 1.0], {1: 1.5}),
            lambda f: f.update([0, 1], [2.0, 1.5], [(1, 1.6)]),
        ],
    ),
    "perplexity": (
        live.PerplexityCurve,
        [
            lambda f: f.update([]),
            lambda f: f.update([Evaluation(4, 2.0, None)]),
            lambda f: f.update([Evaluation(4, 1000.0, None), Evaluation(9, 2.0, 0.5), Evaluation(14, 1.5, 0.6)]),
        ],
    ),
    "accuracy": (
        live.AccuracyCurve,
        [
            lambda f: f.update([]),
            lambda f: f.update([Evaluation(4, 2.0, None)]),
            lambda f: f.update([Evaluation(4, 2.0, None), Evaluation(9, 1.0, 0.25)]),
        ],
    ),
    "collectives": (
        live.CollectiveCurves,
        [
            lambda f: f.update(None),
            lambda f: f.update(LAYERS),
            lambda f: f.update(LAYERS.replace(collectives=made_collectives()[:1])),
            lambda f: f.update(LAYERS.replace(collectives=made_collectives(degrees=range(2, 20)))),
        ],
    ),
    "experts": (
        live.ExpertLoads,
        [
            lambda f: f.update({}),
            lambda f: f.update({f"layer.{i}": [10] * 40 for i in range(50)}),
            lambda f: f.update({"one": [0, 0], "other": [30, 10, 20]}),
        ],
    ),
    "step times": (
        live.StepTimes,
        [
            lambda f: f.update([], []),
            lambda f: f.update([1], [0.2], 0.21),
            lambda f: f.update([1, 2, 3], [9.0, 0.2, 0.21], 0.2, 0.01),
        ],
    ),
    "throughput": (
        live.ThroughputCurve,
        [lambda f: f.update([], []), lambda f: f.update([1], [10.0]), lambda f: f.update([1, 2], [10.0, 12.0])],
    ),
    "memory": (
        live.MemoryBars,
        [
            lambda f: f.update(None),
            lambda f: f.update(chain_plan([16], [])),
            lambda f: f.update(ONE),
            lambda f: f.update(MANY),
        ],
    ),
}
each_figure = pytest.mark.parametrize("name", CASES)


def parts_of(figure: Any) -> set[str]:
    """Ids of all models of a figure but its tickers, which carry words for numbers."""
    return {model.id for model in figure.references()}


def sources_fit(figure: Any) -> bool:
    renderers = figure.select(type=GlyphRenderer)
    return all(len({len(column) for column in r.data_source.data.values()}) <= 1 for r in renderers)


@each_figure
def test_updates_rebuild_nothing_and_stay_valid(name: str) -> None:
    make, updates = CASES[name]
    drawn = make(height=300)
    document = Document()
    document.add_root(drawn.figure)
    for update in updates:  # axes take their fixed tickers the first time
        update(drawn)
    before = parts_of(drawn.figure)
    for update in [*updates, *reversed(updates)]:
        update(drawn)
        assert sources_fit(drawn.figure)
        assert parts_of(drawn.figure) == before
        assert not check_integrity(document.models).error
        assert not check_integrity(document.models).warning


@each_figure
def test_documents_serialise_without_urls(name: str) -> None:
    make, updates = CASES[name]
    drawn = make()
    for update in updates:
        update(drawn)
        script, _ = components(drawn.figure)
        assert "http://" not in script
        assert "https://" not in script
        assert "//cdn" not in script


@each_figure
def test_dark_and_back_changes_colours_only(name: str) -> None:
    make, updates = CASES[name]
    drawn = make(dark=True)
    dark = json.dumps(_colours(drawn.figure))
    updates[-1](drawn)
    before = parts_of(drawn.figure)
    drawn.set_dark(False)
    assert json.dumps(_colours(drawn.figure)) != dark
    drawn.set_dark(True)
    assert json.dumps(_colours(drawn.figure)) == dark
    assert parts_of(drawn.figure) == before


def _colours(figure: Any) -> list[list[str]]:
    return [[axis.major_label_text_color, axis.axis_label_text_color, axis.axis_line_color] for axis in figure.axis]


@each_figure
def test_nothing_to_show_is_said(name: str) -> None:
    make, updates = CASES[name]
    drawn = make()
    assert drawn._note.text
    updates[-1](drawn)
    if name != "convergence":  # whose last case has neither curve nor line, but an event
        assert not drawn._note.text
    updates[0](drawn)
    assert drawn._note.text


@each_figure
def test_hovers_escape_names(name: str) -> None:
    drawn = CASES[name][0]()
    tips = [row for tool in drawn.figure.select(type=HoverTool) for row in tool.tooltips]
    assert tips
    assert not any("safe}" in text for _, text in tips)


def test_equal_data_is_not_sent_again() -> None:
    document = Document()
    drawn = live.DeviceMap()
    document.add_root(drawn.figure)
    drawn.update(None, MANY)
    events: list[Any] = []
    document.on_change(events.append)
    drawn.update(None, MANY)
    assert events == []
    drawn.update(None, ONE)
    assert events


def test_an_improved_plan_sends_few_changes_and_leaves_the_view() -> None:
    drawn = live.DeviceMap()
    drawn.update(None, MANY)
    document = Document()
    document.add_root(drawn.figure)
    events: list[Any] = []
    document.on_change(events.append)
    swapped = MANY.replace(
        routes=tuple(r.replace(replicas=(*r.replicas[:-1], (r.replicas[-1] + 1) % 3)) for r in MANY.routes)
    )
    drawn.update(None, swapped)
    assert len(events) == 1, "the arcs"


def test_put_sees_changes_inside_lists_of_arrays() -> None:
    source = empty_source("xs")
    put(source, {"xs": [np.array([1.0, 2.0])]})
    held = source.data
    put(source, {"xs": [np.array([1.0, 2.0])]})
    assert source.data is held
    put(source, {"xs": [np.array([1.0, 3.0])]})
    assert source.data["xs"][0][1] == 3.0


def test_put_takes_lines_that_grow_past_what_travels_as_text_and_shrink_again() -> None:
    source = empty_source("xs")
    for count in (SMALL_ARRAY - 1, SMALL_ARRAY + 1, 3 * SMALL_ARRAY, 2):
        put(source, {"xs": [np.arange(count), np.arange(4.0)]})
        assert [len(line) for line in source.data["xs"]] == [count, 4]


def test_timeline_limits_its_bars() -> None:
    drawn = live.Timeline(max_spans=100)
    drawn.update(Trace(tuple(Span(0, "forward", 0, i, float(i), i + 0.9) for i in range(1000)), ("a",)))
    assert sum(len(s.data["y"]) for s in drawn.sources.values()) == 100


def test_timeline_follows_or_stays() -> None:
    drawn = live.Timeline()
    spans = tuple(Span(0, "forward", i, 0, float(i), i + 1.0) for i in range(10))
    drawn.update(Trace(spans[:5], ("a",)))
    assert drawn.figure.x_range.start == 2.0
    drawn.update(Trace(spans, ("a",)), follow=False)
    assert drawn.figure.x_range.start == 2.0
    drawn.update(Trace(spans, ("a",)))
    assert drawn.figure.x_range.start == 7.0


def test_map_keeps_the_view_while_sites_stay() -> None:
    drawn = live.DeviceMap()
    drawn.update(MANY.problem.cluster)
    drawn.figure.x_range.start = 123.0  # the user pans
    drawn.update(MANY.problem.cluster, MANY)
    assert drawn.figure.x_range.start == 123.0
    drawn.update(small_cluster(2))
    assert drawn.figure.x_range.start != 123.0


def test_heatmap_image_has_the_first_row_on_top() -> None:
    drawn = live.LinkHeatmap()
    drawn.update(small_cluster(3))
    image = drawn.image_source.data["image"][0]
    assert image.shape == (3, 3)
    assert [math.isnan(image[2 - i, i]) for i in range(3)] == [True] * 3
    assert drawn.figure.output_backend == "canvas"


def test_heatmap_marks_a_link_and_names_what_is_clicked() -> None:
    drawn = live.LinkHeatmap()
    assert drawn.pair_at(0.5, 0.5) is None
    drawn.update(sites_cluster([2, 1]))
    assert drawn.pair_at(0.5, 2.5) == ("d0", "d0")
    assert drawn.pair_at(2.9, 1.5) == ("d1", "d2")
    assert drawn.pair_at(2.9, 3.0) == ("d0", "d2")
    assert drawn.pair_at(3.0, 1.0) is None
    assert drawn.pair_at(1.0, float("nan")) is None
    drawn.mark(LinkEnds("site", "site-0", "site-1"))
    assert drawn.mark_source.data == {"left": [2.0], "right": [3.0], "bottom": [1.0], "top": [3.0]}
    drawn.mark(LinkEnds("device", "d2", "d0"))
    assert drawn.mark_source.data == {"left": [0.0], "right": [1.0], "bottom": [0.0], "top": [1.0]}
    drawn.mark(LinkEnds("host", "h0-1", "h0-1"))
    assert drawn.mark_source.data["left"] == [1.0]
    drawn.mark(LinkEnds("site", "elsewhere", "site-0"))
    assert drawn.mark_source.data["left"] == []


def test_heatmap_shows_how_links_are_known() -> None:
    drawn = live.LinkHeatmap()
    edited = set_link(sites_cluster([1, 1]), LinkEnds("site", "site-0", "site-1"), latency_s=1.0, symmetric=False)
    drawn.update(edited)
    bandwidth = drawn.image_source.data["image"][0]
    drawn.show("known")
    image = drawn.image_source.data["image"][0][::-1]
    assert [image[0, 1], image[1, 0]] == [1.0, 2.0]
    assert drawn._known_image.glyph.color_mapper.palette == list(SOURCE_COLOURS.values())
    assert (drawn._image.visible, drawn._known_image.visible) == (False, True)
    assert (drawn._bar.visible, drawn._legend.visible) == (False, True)
    drawn.show("bandwidth")
    np.testing.assert_array_equal(drawn.image_source.data["image"][0], bandwidth)
    assert (drawn._bar.visible, drawn._legend.visible) == (True, False)


@pytest.mark.parametrize(("width", "text"), [(1200, "d0"), (90, "d0")])
def test_words_follow_the_width_that_the_page_tells(width: int, text: str) -> None:
    drawn = live.AllocationGrid(height=400)
    drawn.update(MANY)
    drawn.figure.set_from_json("inner_height", 300)
    drawn.figure.set_from_json("inner_width", width)
    lines = drawn.source.data["text"][0].split("\n")
    assert (lines[:1] == [text]) == (width == 1200)
    assert (lines[-1] == "6 micro-batches") == (width == 1200)


def test_legends_wrap_in_narrow_figures() -> None:
    drawn = live.Timeline()
    drawn.figure.set_from_json("inner_height", 300)
    drawn.figure.set_from_json("inner_width", 900)
    assert drawn._legend is not None
    assert drawn._legend.ncols == 7
    drawn.figure.set_from_json("inner_width", 300)
    assert drawn._legend.ncols < 4


def test_the_grid_names_its_sites_in_the_legend() -> None:
    drawn = live.AllocationGrid()
    drawn.update(MANY)
    assert list(dict.fromkeys(drawn.source.data["site"])) == [s.name for s in MANY.problem.cluster.sites]


@pytest.mark.parametrize(("replicas", "labels"), [(8, 8), (24, 24), (100, 20)])
def test_the_numbers_of_the_grids_rows_stand_apart(replicas: int, labels: int) -> None:
    drawn = live.AllocationGrid()
    drawn.update(chain_plan([1] * replicas, [], cluster=small_cluster(replicas)))
    assert len(drawn.figure.yaxis[0].ticker.ticks) == labels
    assert drawn.figure.yaxis[0].major_label_overrides[0.0] in ("replica 0", "0")


@each_figure
@pytest.mark.filterwarnings("error")
def test_figures_on_a_page_out_of_view_have_no_size_and_work(name: str) -> None:
    make, updates = CASES[name]
    drawn = make()
    drawn.figure.set_from_json("inner_width", 0)
    drawn.figure.set_from_json("inner_height", 0)
    for update in updates:
        update(drawn)
    assert sources_fit(drawn.figure)


def test_a_replay_holds_every_moment_once_and_serialises() -> None:
    moments = [
        Moment(0.001, 1, 9.0, ((0, 1), (2, 3)), {"compute_s": 4.0}),
        Moment(2.0, 70, 5.0, ((3,), (1,), (0,)), {}),
    ]
    cluster = small_cluster(4)
    curve, world, grid, bars = live.ConvergenceCurve(), live.DeviceMap(), live.AllocationGrid(), live.CostBars()
    replay = live.Replay(curve, world, grid, bars)
    assert not replay.controls.visible
    replay.update(moments, cluster, offset_s=1.0)
    assert replay.places.data["device"] == [0, 1, 2, 3, 3, 1, 0]
    assert replay.sizes.data["size"] == [2, 2, 1, 1, 1]
    told = replay.moments.data
    assert (told["first"], told["row"], told["depth"], told["seconds"]) == ([0, 4], [0, 2], [2, 3], [1.001, 3.0])
    assert told["terms"] == [[["compute", 4.0, "4 s"]], []]
    assert told["text"][1] == "Moment 2 of 2: 5 s after 3 s of search, 70 placements"
    assert (replay.slider.end, replay.slider.value, replay.controls.visible) == (1, 1, True)
    document = Document()
    for root in (curve.figure, world.figure, grid.figure, bars.figure, replay.controls):
        document.add_root(root)
    assert document.to_json()
    replay.update([], cluster)
    assert not replay.controls.visible
