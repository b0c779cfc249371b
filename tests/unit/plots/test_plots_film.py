"""The film of a search, and the plan's report that holds it: one small file, whole, the same every time, and safe."""

import json
import random
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import hetplanner as hp
from hetplanner.cli.app import app
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.search.moments import Moment, plan_moment
from hetplanner.planners.search.tried import TriedShape
from hetplanner.plots.data.curves import value_text
from hetplanner.plots.data.maps.labels import MAX_NAMED
from hetplanner.plots.data.search.films import (
    LONGEST_BAR,
    MOST_CELLS,
    CurveFrame,
    View,
    bar_scale_s,
    known_terms,
    outline,
    shown_moments,
    site_rows,
)
from hetplanner.plots.film import film_html
from hetplanner.plots.plan_report_page import plan_report_page
from tests.support.files.hostile import MARKUP, NAMES, hostile_cluster, hostile_plan
from tests.support.plans.factories import chain_plan, small_cluster

MOST_BYTES = 300_000
PLAN = chain_plan([6, 5, 5], [3, 5, 7])
ESTIMATED = PLAN.replace(estimate=estimate_plan(PLAN))


def said(value):
    return value_text(value, "step-time")


def searched(count, devices, stages, seed=0):
    """Moments of a search that moves a few devices each time, as one does."""
    rng, order = random.Random(seed), list(range(devices))
    moments = []
    for i in range(count):
        for _ in range(4):
            a, b = rng.sample(range(devices), 2)
            order[a], order[b] = order[b], order[a]
        rows = tuple(tuple(order[s::stages]) for s in range(stages))
        value = 30.0 / (1 + i / 10)
        terms = {"compute": value / 3, "pipeline_transfer": value / 2, "data_parallel": value / 6}
        moments.append(Moment(0.1 * i, 100 * i, value, rows, terms if i % 3 == 0 else {}))
    return moments


def told(page):
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_film_holds_every_moment_and_is_small_and_the_same_every_time():
    cluster = hp.generate_cluster("r10j", seed=1)
    moments = searched(200, 64, 8)
    page = film_html(moments, cluster, {}, said)
    assert page == film_html(moments, cluster, {}, said)
    assert len(page.encode()) < MOST_BYTES
    data = told(page)
    ids = [[[data["ids"][k] for k in row] for row in stages] for stages in data["stages"]]
    assert ids == [[[cluster.device_ids[d] for d in row] for row in m.stages] for m in moments]
    assert data["texts"][7] == f"Moment 8 of 200: {said(moments[7].value)} after 700 ms of search, 700 placements"
    assert len(data["marks"]) == len(data["bars"]) == 200
    assert [term["label"] for term in data["terms"]] == ["compute", "transfer", "reduction"]
    assert data["bars"][4] == data["bars"][3] == pytest.approx([30 / 1.3 / 3, 30 / 1.3 / 2, 30 / 1.3 / 6], rel=1e-4)
    assert "are left out" not in page


def test_a_film_of_too_much_leaves_moments_out_evenly_and_says_so():
    moments = searched(500, 512, 8)
    shown = shown_moments(moments)
    assert (shown[0], shown[-1]) == (moments[0], moments[-1])
    assert 512 * len(shown) <= MOST_CELLS
    page = film_html(moments, small_cluster(512), {}, said)
    assert f"{500 - len(shown)} moments are left out." in page
    assert len(page.encode()) < 2 * MOST_BYTES


def test_bars_end_where_the_plan_can_still_be_read():
    moments = [Moment(0.0, 1, 90.0, ((0,),), {"compute": 90.0}), Moment(1.0, 2, 1.0, ((1,),), {"compute": 1.0})]
    assert bar_scale_s(moments, {}) == LONGEST_BAR
    assert bar_scale_s(moments[1:], {"rank order": ESTIMATED.estimate.replace(terms={"compute": 2.0})}) == 2.0
    assert bar_scale_s([Moment(0.0, 1, 1.0, ((0,),), {})], {}) == 1.0
    assert known_terms([Moment(0.0, 1, 1.0, ((0,),), {}), *moments]) == [{}, {"compute": 90.0}, {"compute": 1.0}]


def test_the_curve_falls_to_the_right_inside_its_frame():
    moments = searched(50, 8, 2)
    places = [CurveFrame.of(moments).place(m.searched_s, m.value) for m in moments]
    assert places == sorted(places)
    assert len(set(places)) > 40
    assert CurveFrame.of(moments[:1]).stairs(moments[:1]).startswith("M")


def test_of_many_sites_those_are_named_whose_names_can_be_read():
    few, many = site_rows(small_cluster(5)), site_rows(small_cluster(200))
    assert all("label" in row for row in few)
    assert 0 < sum("label" in row for row in many) < MAX_NAMED
    assert [row["name"] for row in many] == [site.name for site in small_cluster(200).sites]


def test_the_outline_stays_near_the_frame_and_is_no_finer_than_half_a_pixel():
    view = View.of(small_cluster(2))
    circle = np.linspace(0, 2 * np.pi, 5000)
    rings = [(view.west + 1e5 * np.cos(circle), view.north - 5e5 + 1e5 * np.sin(circle))]
    path = outline(rings, view, closed=True)
    assert path.startswith("M")
    assert path.endswith("z")
    assert len(path) < 3000
    assert outline([(rings[0][0] - 1e8, rings[0][1])], view, closed=True) == ""


@pytest.mark.parametrize("moments", [(), (0, 1)])
def test_hostile_names_are_text_in_the_report_and_nothing_is_loaded(moments):
    plan = hostile_plan()
    estimate = estimate_plan(plan)
    plan = plan.replace(estimate=estimate)
    film = [plan_moment(plan, 2.0 - i, 0.1 * i, i) for i in moments]
    page = plan_report_page(plan, film, [TriedShape(2, 2, 1.0, 3)], {NAMES[0]: estimate, NAMES[2]: estimate})
    for markup in MARKUP:
        assert markup not in page
    assert page.count("</script>") == 2
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|<(script|link|img|iframe)[^>]+(src|href)=", page)
    kinds = {site["name"] for site in told(page)["sites"]}
    assert kinds == {site.name for site in hostile_cluster().sites}
    assert ("film-still" in page.split("<script")[0].split("</style>")[-1]) == (not moments)


def test_a_plan_without_a_search_or_an_estimate_has_a_report_too(tmp_path):
    page = plan_report_page(PLAN)
    assert "Who does what" in page
    assert "Shapes tried" not in page
    assert len(told(page)["stages"]) == 1
    path = hp.plots.write_plan_report(ESTIMATED, tmp_path / "plan.html", {"itself": ESTIMATED})
    assert ">itself</text>" in path.read_text(encoding="utf-8")
    with pytest.raises(InvalidInput, match="cannot be written"):
        hp.plots.write_plan_report(ESTIMATED, tmp_path / "missing" / "plan.html")
    with pytest.raises(InvalidInput, match="estimate_plan"):
        hp.plots.write_plan_report(ESTIMATED, tmp_path / "plan.html", {"bare": PLAN})


def test_a_search_is_shown_in_a_cell_and_in_its_report(tmp_path):
    problem = Problem(
        cluster=small_cluster(4), workload=PLAN.problem.workload, constraints=Constraints(stages=2, replicas=2)
    )
    result = hp.search(problem, budget="3000 evaluations", live=False)
    again = hp.search(problem, budget="3000 evaluations", live=False)
    assert result.plan.stages == again.plan.stages
    last = result.moments[-1]
    assert last == plan_moment(result.plan, result.value, last.searched_s, result.evaluations)
    html = hp.plots.search_replay(result, hp.baselines(problem))._repr_mimebundle_()["text/html"]
    assert html.count("data-root-id") == 1
    assert not re.search("https?://", html)
    page = hp.plots.write_plan_report(result, tmp_path / "r.html").read_text(encoding="utf-8")
    assert len(told(page)["stages"]) == len(result.moments)
    with pytest.raises(InvalidInput, match="holds no moments"):
        hp.plots.search_replay(type(result)(result.plan, 1.0, 1.0, 1, 1.0, 0))


@pytest.mark.parametrize("mode", ["static", "elastic"])
def test_the_command_writes_the_report(mode, tmp_path):
    cluster, page = tmp_path / "c.json", tmp_path / "report.html"
    hp.save_cluster(small_cluster(4), cluster)
    words = ["plan", str(cluster), "tiny-gpt", "--mode", mode, "--evaluations", "500", "--json"]
    done = CliRunner().invoke(app, [*words, "--report", str(page)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["report"] == str(page)
    text = page.read_text(encoding="utf-8")
    assert "Plan of tiny-gpt on" in text
    assert ">rank order</text>" in text
    refused = CliRunner().invoke(app, [*words, "--report", str(tmp_path / "missing" / "r.html")])
    assert isinstance(refused.exception, InvalidInput)
    assert "there is no folder" in str(refused.exception)
