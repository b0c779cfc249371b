"""Columns of the plots: exact values from small clusters, plans and traces."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.cluster.model import Cluster
from hetplanner.plan.estimate import Bottleneck, DeviceEstimate, Estimate
from hetplanner.plan.trace import Span, Trace
from hetplanner.plots import coastline, theme
from hetplanner.plots.data import curves
from hetplanner.plots.data.maps import labels, links, maps
from hetplanner.plots.data.search import costs, grid, memory
from hetplanner.plots.data.steps import spans
from hetplanner.schema import checked
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.plans.grouped import grouped_plan


def two_sites(devices: tuple[int, int] = (2, 1)) -> Cluster:
    """Tokyo and Oregon; the device order alternates between them."""
    names = [("tokyo", 35.0, 140.0), ("oregon", 45.0, -120.0)]
    ids = [
        (f"{site}-{i}", site)
        for i in range(max(devices))
        for (site, *_), n in zip(names, devices, strict=True)
        if i < n
    ]
    data = {
        "name": "pacific",
        "sites": [{"name": n, "latitude": lat, "longitude": lon} for n, lat, lon in names],
        "hosts": [{"id": i, "site": s} for i, s in ids],
        "devices": [{"id": i, "kind": "A100-80" if s == "tokyo" else "V100-16", "host": i} for i, s in ids],
        "site_links": [
            {
                "from": a,
                "to": b,
                "latency": "5 ms" if a == b else "50 ms",
                "bandwidth": "2 Gbit/s",
                "source": "measured",
            }
            for a, *_ in names
            for b, *_ in names
        ],
        "device_links": [
            {"from": "tokyo-0", "to": "oregon-0", "latency": "80 ms", "bandwidth": "500 Mbit/s", "when": "2024"}
        ],
    }
    return checked(Cluster, data, "pacific", from_file=True)


def estimate(step_s: float = 2.0, devices: tuple[tuple[str, float, float], ...] = ()) -> Estimate:
    return Estimate(
        step_s=step_s,
        tokens_per_s=100.0,
        bubble=0.25,
        terms={"compute": 0.5 * step_s, "bubble": 0.02 * step_s, "pipeline_transfer": 0.48 * step_s},
        devices=tuple(DeviceEstimate(device=d, busy_s=1.0, peak_bytes=p, limit_bytes=m) for d, p, m in devices),
        bottleneck=Bottleneck(kind="device", name="d0", step_s_without=1.0, text="d0 computes"),
    )


# -- coastline and palette --------------------------------------------------------------------------


def test_mercator_of_known_points() -> None:
    x, y = coastline.mercator([0, 180, -180], [0, 45, 89.9])
    assert x == pytest.approx([0, 20037508.34, -20037508.34])
    assert y[0] == pytest.approx(0, abs=1e-6)
    assert y[1] == pytest.approx(5621521.486)
    assert y[2] == pytest.approx(coastline.mercator(0, coastline.MAX_LATITUDE)[1])


def test_land_is_where_it_is_and_reaches_beyond_the_antimeridian() -> None:
    rings = coastline.land_rings()
    assert len(rings) > 193, "copies beyond the edge"
    west, east = min(float(x.min()) for x, _ in rings), max(float(x.max()) for x, _ in rings)
    assert west < -coastline.WORLD_WIDTH_M / 2 < coastline.WORLD_WIDTH_M / 2 < east
    madrid = coastline.mercator(-3.7, 40.4)
    assert any(_inside(float(madrid[0]), float(madrid[1]), x, y) for x, y in rings)
    mid_atlantic = coastline.mercator(-35.0, 30.0)
    assert not any(_inside(float(mid_atlantic[0]), float(mid_atlantic[1]), x, y) for x, y in rings)


def _inside(px: float, py: float, x: np.ndarray, y: np.ndarray) -> bool:
    x0, y0, x1, y1 = x, y, np.roll(x, -1), np.roll(y, -1)
    crosses = (y0 > py) != (y1 > py)
    with np.errstate(divide="ignore", invalid="ignore"):
        at = x0 + (py - y0) / (y1 - y0) * (x1 - x0)
    return bool(np.count_nonzero(crosses & (px < at)) % 2)


def test_sites_have_colours_of_their_own_and_readable_ink() -> None:
    colours = [theme.site_colour(i) for i in range(18)]
    assert len(set(colours)) == 18
    assert theme.ink_on("#FFFFFF") == theme.DARK_INK
    assert theme.ink_on("#4477AA") == theme.LIGHT_INK


def test_terms_keep_their_colour_under_every_spelling() -> None:
    one, two = theme.term_colours(["pipeline_transfer", "Data-Parallel"]), theme.term_colours(["data parallel", "new"])
    assert one["pipeline_transfer"] == theme.TERM_COLOURS["pipeline"]
    assert one["Data-Parallel"] == two["data parallel"] == theme.TERM_COLOURS["data_parallel"]
    assert two["new"] not in theme.TERM_COLOURS.values()


# -- map --------------------------------------------------------------------------------------------


def test_site_columns_count_devices_and_kinds() -> None:
    columns = maps.site_columns(two_sites())
    assert columns["label"] == ["tokyo · 2", "oregon · 1"]
    assert columns["kinds"] == ["2 × A100-80", "1 × V100-16"]
    assert columns["devices"] == ["tokyo-0, tokyo-1", "oregon-0"]
    assert columns["size"][0] > columns["size"][1]


def test_long_lists_are_cut() -> None:
    assert maps.listed([str(i) for i in range(5)], 3) == "0, 1, 2 … and 2 more"


def test_arcs_cross_the_pacific_by_the_shorter_way_as_two_pieces() -> None:
    plan = chain_plan([16], [3], cluster=two_sites((1, 1)))
    columns = maps.arc_columns(plan)
    assert len(columns["xs"]) == 2, "one piece at either edge of the map"
    assert columns["link"] == ["tokyo-0 → oregon-0"] * 2
    assert columns["latency"][0] == "80 ms"
    assert columns["bandwidth"][0] == "500 Mbit/s"
    shift = columns["xs"][1] - columns["xs"][0]
    assert np.abs(shift) == pytest.approx(coastline.WORLD_WIDTH_M)
    assert np.ptp(columns["xs"][0]) == pytest.approx(coastline.WORLD_WIDTH_M * 100 / 360)


def test_arc_traffic_is_activations_and_gradients_of_all_micro_batches_of_the_route() -> None:
    plan = chain_plan([10, 6], [3])
    once = plan.boundary_bytes(0, 0, 2, "activation") + plan.boundary_bytes(0, 2, 0, "gradient")
    columns = maps.arc_columns(plan)
    assert columns["bytes"] == [10 * once, 6 * once]
    assert columns["width"][0] > columns["width"][1]
    assert len(set(columns["colour"])) == 2


def test_hops_inside_a_site_are_not_drawn() -> None:
    plan = chain_plan([16], [3], cluster=two_sites().subset(["tokyo-0", "tokyo-1"]))
    assert maps.arc_columns(plan)["xs"] == []
    assert maps.stages_at_sites(plan) == [{0: ["tokyo-0"], 1: ["tokyo-1"]}]


def test_gradient_exchange_between_two_sites_counts_both_ways() -> None:
    plan = chain_plan([8, 8], [], cluster=two_sites((1, 1)))
    columns = maps.shared_columns(plan)
    params = plan.problem.workload.graph.num_params
    assert columns["groups"][0] == "stage 0"
    # Each of the two sends the other half of the bucket, and the sum of its own half back: 2 × all, in float32.
    assert columns["traffic"][0] == f"{2 * params * 4 / 1e3:.3g} kB"


def test_views_contain_their_points_and_keep_the_aspect() -> None:
    box = maps.view_box([0.0, 4e6], [1e6, 2e6])
    west, east, south, north = maps.fitted(box, 800, 400)
    assert west <= box[0] < 0.0 < 4e6 < box[1] <= east
    assert south <= box[2] < 1e6 < 2e6 < box[3] <= north
    assert (east - west) / 800 == pytest.approx((north - south) / 400)
    single = maps.view_box([5.0], [7.0])
    assert single[1] - single[0] == pytest.approx(maps.SMALLEST_VIEW_M)


def test_labels_of_neighbours_do_not_cover_each_other() -> None:
    sizes = [labels.block_size(name, ()) for name in ("Ohio · 8", "Virginia · 8", "Oregon · 8")]
    x, y = [200.0, 212.0, 230.0], [100.0, 104.0, 96.0]
    blocks = labels.placed_blocks(x, y, [8.0] * 3, sizes, (600, 300))
    boxes = [(px + b.left, py + b.top, b.width, b.height) for px, py, b in zip(x, y, blocks, strict=True)]
    for i, (x0, y0, w0, h0) in enumerate(boxes):
        for x1, y1, w1, h1 in boxes[:i]:
            assert not (x0 < x1 + w1 and x1 < x0 + w0 and y0 < y1 + h1 and y1 < y0 + h0)


def test_labels_stay_on_the_map() -> None:
    (block,) = labels.placed_blocks([4.0], [296.0], [5.0], [(60.0, 15.0)], (600, 300))
    assert block.left >= 0
    assert block.top + block.height <= 4


def test_consecutive_stages_share_a_badge() -> None:
    assert labels.runs_of([7, 0, 1, 2, 4, 5]) == [(0, 2), (4, 4), (5, 5), (7, 7)]


# -- links ------------------------------------------------------------------------------------------


def test_link_matrix_is_grouped_by_site() -> None:
    matrix = links.link_matrix(two_sites())
    assert matrix.ids == ("tokyo-0", "tokyo-1", "oregon-0"), "in the file oregon-0 stands between them"
    assert matrix.site_names == ("tokyo", "oregon")
    assert matrix.site_centres == (1.0, 2.5)
    assert matrix.site_edges == (2.0,)
    assert np.isnan(np.diag(matrix.value_DD)).all()
    assert matrix.value_DD[0, 2] == pytest.approx(500.0)
    assert matrix.value_DD[2, 0] == pytest.approx(2000.0)
    assert matrix.sources[matrix.source_DD[0, 2]] == "assumed, 2024"
    assert matrix.sources[matrix.source_DD[2, 0]] == "measured"
    assert matrix.sources[matrix.source_DD[1, 1]] == "the device itself"


def test_latency_matrix_is_in_ms() -> None:
    assert links.link_matrix(two_sites(), "latency").value_DD[0, 2] == pytest.approx(80.0)


@pytest.mark.parametrize(
    ("values", "limits"),
    [([1.0, 10.0], (1.0, 10.0)), ([4.0, 4.0], (4 / 1.5, 6.0)), ([0.0, math.nan], (0.1, 10.0)), ([], (0.1, 10.0))],
)
def test_colour_limits_always_leave_a_scale(values: list[float], limits: tuple[float, float]) -> None:
    assert links.colour_limits(np.array(values)) == pytest.approx(limits)


def test_groups_are_named_at_their_site_and_by_their_stages() -> None:
    plan = grouped_plan(2)
    columns = maps.site_columns(plan.problem.cluster, groups=plan.problem.groups)
    assert columns["label"] == ["here · 8 (×2)"]
    assert columns["kinds"] == ["8 × T4 in groups of 2"]
    some = maps.site_columns(plan.problem.cluster, groups=plan.problem.groups[:2])
    assert some["kinds"] == ["4 × T4 in groups of 2, 4 × T4"]
    assert maps.stages_at_sites(plan) == [{0: ["h0-0(×2)", "h0-2(×2)"], 1: ["h1-0(×2)", "h1-2(×2)"]}]


# -- grid, memory, costs ----------------------------------------------------------------------------


def test_grid_has_a_row_for_every_replica() -> None:
    plan = chain_plan([10, 6], [3])
    columns = grid.grid_columns(plan)
    assert columns["stage"] == [0, 0, 1, 1]
    assert columns["replica"] == [0, 1, 0, 1]
    assert columns["device"] == ["d0", "d1", "d2", "d3"]
    assert columns["rank"] == [0, 1, 2, 3]
    assert columns["micro_batches"] == [10, 6, 10, 6]
    assert columns["share"][1] == "6 of 16 micro-batches (38%)"
    assert columns["memory"] == ["not estimated"] * 4
    assert columns["ops"][0].startswith("embedding, layer")
    assert columns["ops"][3].endswith("loss")


def test_grid_and_memory_read_the_estimate() -> None:
    plan = chain_plan([16], [3]).replace(estimate=estimate(devices=(("d1", 2**30, 2**31), ("d0", 2**29, 2**31))))
    assert grid.grid_columns(plan)["memory"] == ["537 MB of 2.15 GB", "1.07 GB of 2.15 GB"]
    columns = memory.memory_columns(plan)
    assert columns["device"] == ["d0", "d1"], "in rank order"
    assert columns["limit"] == ["2.15 GB"] * 2
    assert columns["stage"] == [0, 1]


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_memory_bars_stand_on_each_other_up_to_the_peak(degree: int) -> None:
    plan = grouped_plan(degree)
    columns = memory.memory_columns(plan)
    ends = [memory.part_names(part) for part in memory.PARTS]
    assert columns[ends[0][0]] == pytest.approx([0.0] * len(plan.ranks))
    for (_, top, _), (bottom, _, _) in pairwise(ends):
        assert columns[bottom] == pytest.approx(columns[top])
    assert columns[ends[-1][1]] == pytest.approx(columns["peak_gb"])
    assert columns["peak_gb"] == pytest.approx([e.peak_bytes / 1e9 for e in plan.estimate.devices])
    assert columns["share"] == pytest.approx([e.peak_bytes / e.limit_bytes for e in plan.estimate.devices])
    assert set(columns["kind"]) == {"T4" if degree == 1 else f"{degree} × T4"}


def test_memory_is_empty_without_an_estimate() -> None:
    assert set(map(len, memory.memory_columns(chain_plan([16], [3])).values())) == {0}


def test_of_many_devices_the_fullest_are_shown_and_that_is_said() -> None:
    shares = [0.1, 0.9, 0.5, 0.7]
    columns = {"rank": [0, 1, 2, 3], "device": ["a", "b", "c", "d"], "share": shares}
    shown, words = memory.fullest(columns, most=4)
    assert (shown, words) == (columns | {"x": [0.0, 1.0, 2.0, 3.0]}, "")
    shown, words = memory.fullest(columns, most=2)
    assert shown == {"rank": [1, 3], "device": ["b", "d"], "share": [0.9, 0.7], "x": [0.0, 1.0]}
    assert words == "the 2 fullest of 4 devices, fullest first"


@pytest.mark.parametrize(
    ("limit", "short"), [(20, "frankfurt-12"), (7, "fra…-12"), (2, "f…"), (1, "…"), (12, "frankfurt-12")]
)
def test_ids_keep_their_ends(limit: int, short: str) -> None:
    assert grid.shortened("frankfurt-12", limit) == short


def test_cost_parts_follow_on_and_add_up() -> None:
    columns = costs.cost_columns({"planned": estimate(2.0), "random": estimate(6.0)})
    assert columns["label"] == ["planned"] * 3 + ["random"] * 3
    assert columns["term"][:3] == ["compute", "waiting", "transfer"]
    assert columns["left"][3:] == pytest.approx([0.0, 3.0, 3.12])
    assert columns["right"][3:] == pytest.approx([3.0, 3.12, 6.0])
    assert columns["text"] == ["1 s", "", "960 ms", "3 s", "", "2.88 s"]
    assert columns["share"][3:] == ["50%", "2%", "48%"]
    assert columns["y"] == [0, 0, 0, -1, -1, -1]


def test_totals_are_compared_with_the_first() -> None:
    columns = costs.total_columns({"planned": estimate(2.0), "random": estimate(6.0)})
    assert columns["text"] == ["2 s", "6 s  (×3.00)"]
    assert costs.total_columns({})["text"] == []


def test_step_terms_add_up_to_the_step() -> None:
    trace = Trace(
        (
            Span(0, "forward", 0, 0, 0.0, 2.0),
            Span(0, "send", 0, 0, 1.0, 3.0),  # one second beside compute, one alone
            Span(0, "reduce", 0, -1, 3.0, 4.0),
            Span(1, "recv", 0, 0, 0.0, 3.0),
            Span(1, "forward", 0, 0, 3.0, 5.0),
        ),
        ("a", "b"),
    )
    terms = costs.step_terms(trace)
    assert terms == pytest.approx({"compute": 2.0, "waiting for messages": 2.0, "reduction": 0.5, "rest": 0.5})
    assert sum(terms.values()) == pytest.approx(5.0)
    assert costs.step_terms(Trace((), ("a",))) == dict.fromkeys(costs.COMPARED_TERMS, 0.0)


# -- curves -----------------------------------------------------------------------------------------


def test_events_may_be_objects_or_mappings_and_incomplete() -> None:
    event = type("E", (), {"searched_s": 0.0, "evaluations": 5, "best": 2.0, "median": math.inf})()
    other = {"searched_s": 3.0, "best": 1.0, "low": 1.5, "median": 4.0, "high": 5.0}
    columns = curves.event_columns([event, other], 2.0)
    assert columns["seconds"] == [curves.EARLIEST_S, 3.0]
    assert columns["best"] == [2.0, 1.0]
    assert math.isnan(columns["median"][0])
    assert [columns[name][1] for name in ("low", "median", "high")] == [2.0, 4.0, 5.0], "none is below the bound"
    assert math.isnan(columns["evaluations"][1])


@given(st.lists(st.floats(1.0, 9.0) | st.just(math.nan)))
def test_the_best_so_far_never_rises(values: list[float]) -> None:
    best = curves.event_columns([{"searched_s": float(i), "best": v} for i, v in enumerate(values)])["best"]
    known = [v for v in best if not math.isnan(v)]
    assert known == sorted(known, reverse=True)
    assert known[-1:] == [min((v for v in values if not math.isnan(v)), default=None)][: len(known)]


def test_stairs_hold_every_value_until_the_next() -> None:
    assert curves.stairs([1.0, 2.0, 4.0], [9.0, 8.0, 5.0]) == ([1.0, 2.0, 2.0, 4.0, 4.0], [9.0, 9.0, 8.0, 8.0, 5.0])
    assert curves.stairs([], []) == ([], [])


@given(st.integers(0, 30_000))
def test_thinning_keeps_both_ends(count: int) -> None:
    kept = curves.thinned(count)
    assert len(kept) == min(count, curves.MAX_POINTS)
    assert kept == sorted(set(kept))
    assert (kept[:1], kept[-1:]) == (([0], [count - 1]) if count else ([], []))


def test_a_hopeless_baseline_does_not_flatten_the_curve() -> None:
    low, high = curves.value_range([60.0, 50.0], [70.0, 55.0], [5000.0, 90.0])
    assert low < 50.0
    assert high < 200.0
    columns = curves.level_columns({"random": 5000.0, "rank order": 90.0}, "s", high, high - low)
    assert columns["text"] == ["rank order 90 s", "random 5000 s ↑"]
    assert columns["label_y"][1] <= high


def test_labels_of_close_levels_are_moved_apart() -> None:
    columns = curves.level_columns({"a": 10.0, "b": 10.01}, "", 20.0, 10.0)
    assert columns["label_y"][1] - columns["label_y"][0] == pytest.approx(0.6)
    assert columns["y"] == [10.0, 10.01]


def test_series_of_unequal_length_and_bad_values() -> None:
    columns = curves.series_columns([0, 1, 2], [1.0, math.inf])
    assert columns["x"] == [0.0, 1.0]
    assert columns["y"][0] == 1.0
    assert math.isnan(columns["y"][1])


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), max_size=40), st.integers(1, 9))
def test_rolling_median_is_the_median_of_what_is_known(values: list[float], window: int) -> None:
    medians = curves.rolling_median(values, window)
    assert len(medians) == len(values)
    for i, median in enumerate(medians):
        known = [v for v in values[max(0, i + 1 - window) : i + 1] if not math.isnan(v)]
        assert median == pytest.approx(np.median(known)) if known else math.isnan(median)


def test_ranges_leave_room() -> None:
    assert curves.padded_range([]) == (0.0, 1.0)
    assert curves.padded_range([2.0, math.nan]) == pytest.approx((1.8, 2.2))
    assert curves.padded_range([0.1, 10.0], floor=0.0)[0] == 0.0
    assert curves.without_spikes([1.0, 1.0, 100.0, math.nan]) == [1.0, 1.0, 4.0]


# -- spans ------------------------------------------------------------------------------------------


def many_spans(steps: int, per_step: int) -> list[Span]:
    return [
        Span(0, "forward", step, i, step * 100.0 + i, step * 100.0 + i + 0.5, bytes=1)
        for step in range(steps)
        for i in range(per_step)
    ]


def test_newest_whole_steps_that_fit_are_shown() -> None:
    trace = Trace(tuple(many_spans(5, 10)), ("a",))
    shown, origin = spans.chosen_spans(trace, None, 25)
    assert {s.step for s in shown} == {3, 4}
    assert len(shown) == 20
    assert origin == 0.0


def test_one_step_starts_at_zero() -> None:
    shown, origin = spans.chosen_spans(Trace(tuple(many_spans(5, 10)), ("a",)), 3)
    assert origin == 300.0
    assert spans.span_columns(shown, ("a",), origin)["forward"]["left"][0] == 0.0


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100), st.floats(0, 5)), max_size=60), st.integers(8, 40))
def test_merging_keeps_bytes_and_ends_within_the_limit(rows: list[tuple[int, float, float]], limit: int) -> None:
    given_spans = [Span(r, "send", 0, 0, start, start + length, bytes=3) for r, start, length in rows]
    merged = spans.merged_spans(given_spans, limit)
    assert len(merged) <= limit
    assert sum(s.bytes for s in merged) == 3 * len(rows)
    for rank in {r for r, *_ in rows}:
        before, after = ([s for s in group if s.rank == rank] for group in (given_spans, merged))
        assert min(s.start_s for s in before) == min(s.start_s for s in after)
        assert max(s.end_s for s in before) == max(s.end_s for s in after)


def test_span_columns_place_ranks_and_lanes() -> None:
    trace = Trace(
        (Span(1, "send", 0, 4, 1.0, 1.5, 2000, 0, 0, "activation"), Span(0, "odd", 0, -1, 0.0, 1.0)), ("a", "b")
    )
    columns = spans.span_columns(trace.spans, trace.rank_labels)
    row = columns["send"]
    assert row["rank"] == ["1 · b"]
    assert row["peer"] == ["0 · a"]
    assert row["milliseconds"][0] == pytest.approx(500.0)
    assert -1.5 < row["y"][0] - row["height"][0] / 2 < row["y"][0] + row["height"][0] / 2 < -0.5
    assert columns["wait"]["micro_batch"] == ["–"], "a kind we do not know is drawn as waiting"


def test_small_cluster_draws_as_many_sites_as_it_has() -> None:
    assert len(maps.site_columns(small_cluster(5))["x"]) == 5


def test_earlier_searches_share_a_line_with_gaps_between():
    one = [{"searched_s": s, "best": 10 - s} for s in (1.0, 2.0)]
    columns = curves.earlier_columns([one, one[:1]])
    assert columns["seconds"][:2] == [1.0, 2.0]
    assert math.isnan(columns["seconds"][2])
    assert math.isnan(columns["best"][2])
    assert columns["best"][3:] == [9.0]
    assert curves.earlier_columns([]) == {"seconds": [], "best": []}
