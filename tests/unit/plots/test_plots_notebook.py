"""Notebook plots: one call each, an object that renders, nothing loaded before it is asked for."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import holoviews as hv
import nbformat
import pytest
from bokeh.embed import components
from bokeh.plotting import figure
from nbclient import NotebookClient

import hetplanner.plots as plots
from hetplanner.cluster.model import Cluster
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.trace import Trace
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.comparison import run_comparison
from hetplanner.planners.search.tried import TriedShape
from hetplanner.plots.notebook.offline import without_links
from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.reading.reader import Evaluation
from hetplanner.runs.reports.report import RunReport
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.simulator.jitter import Jitter
from hetplanner.simulator.simulation import simulate
from hetplanner.simulator.terms import StepTerms
from hetplanner.simulator.timing import simulate_spread
from hetplanner.workload.presets import preset
from tests.support.models.dags import cut_plan, random_dag
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.plans.grouped import grouped_plan
from tests.support.plans.profiles import made_collectives, made_profile
from tests.support.processes.imported import imported
from tests.support.processes.patience import HANG_S
from tests.support.runs.fake_ranks import phase, step_record, write


def _priced(devices: int) -> Cluster:
    """At 0.3 dollars an hour each."""
    cluster = small_cluster(devices)
    return cluster.replace(devices=tuple(d.replace(price_usd_per_hour=0.3) for d in cluster.devices))


PLAN = chain_plan([6, 5, 5], [3, 5, 7])
ESTIMATED = PLAN.replace(estimate=estimate_plan(PLAN))
TRACE = simulate(PLAN, steps=2)
RESULT = SimpleNamespace(
    events=[
        {
            "searched_s": i / 10,
            "evaluations": i,
            "best": 20.0 - i,
            "low": 21.0 - i,
            "median": 25.0 - i,
            "high": 30.0 - i,
        }
        for i in range(10)
    ],
    plan=ESTIMATED,
    baselines={"rank order": 25.0, "random": 900.0},
    tried=(TriedShape(2, 2, 11.0, 4), TriedShape(4, None, 12.0, 1), TriedShape(1, 4, 13.0, 0)),
    lower_bound=9.0,
)
COMPARISON = run_comparison(PLAN.problem, planners=("random", "rank-order"), seeds=3)
NETWORK = random_dag(3, 40)
CAPTURED = cut_plan(NETWORK, [9, 30], [1, 2, 1], small_cluster(4))
EMPTY_RUN: Any = SimpleNamespace(
    any_plan=PLAN,
    read_all=lambda: None,
    losses=lambda: [],
    validation_losses=lambda: [],
    steps=lambda: [],
    evaluations=lambda: [],
    expert_loads=lambda: {},
    predicted_step_s=lambda: None,
)
RUN: Any = SimpleNamespace(
    read_all=lambda: None,
    losses=lambda: [(0, 3.0), (1, 2.0)],
    validation_losses=lambda: [(1, 2.5)],
    evaluations=lambda: [Evaluation(1, 2.5, 0.25)],
    expert_loads=lambda: {"layer.0": [30, 10]},
    steps=lambda: [
        SimpleNamespace(
            step=i,
            step_s=0.2 if i else None,
            loss=3.0 - i,
            num_tokens=256,
            end_s=1.0 + 0.2 * i,
            boundary_bytes=10**6,
            reduce_bytes=0,
        )
        for i in range(4)
    ],
    predicted_step_s=lambda: 0.21,
    any_plan=chain_plan([16], [5], cluster=_priced(2)),
)

TERMS = StepTerms(compute=0.3, bubble=0.1, pipeline_transfer=0.4, data_parallel=0.05, optimizer=0.01)
REPORT = RunReport(
    run="run",
    state="finished",
    message="",
    steps=4,
    planned_steps=4,
    step_s={"predicted": 0.9, "measured": 1.0},
    terms={"catalog": TERMS, "predicted": TERMS, "measured": TERMS, "refitted": TERMS},
    ranks=(),
    links=(),
    losses=(),
    validation=(),
    grad_norms=(),
    difference="A step took 1 s, +11.1% against the predicted 900 ms. The largest difference is bubble.",
    calibration=None,
)

CALLS = {
    "cluster map": lambda: plots.cluster_map(PLAN.problem.cluster),
    "one site": lambda: plots.cluster_map(small_cluster(1)),
    "bandwidth": lambda: plots.heatmap(PLAN.problem.cluster),
    "latency of many": lambda: plots.heatmap(small_cluster(100), "latency"),
    "how links are known": lambda: plots.heatmap(small_cluster(3), "known"),
    "allocation": lambda: plots.allocation(PLAN),
    "allocation in one place": lambda: plots.allocation(chain_plan([16], [])),
    "allocation of groups": lambda: plots.allocation(grouped_plan(2)),
    "grid": lambda: plots.allocation_grid(ESTIMATED),
    "convergence": lambda: plots.convergence(RESULT),
    "events under way": lambda: plots.convergence(RESULT.events),
    "no events yet": lambda: plots.convergence([]),
    "baselines as plans": lambda: plots.convergence(RESULT, {"rank order": ESTIMATED, "unknown": PLAN}),
    "comparison": lambda: plots.comparison(COMPARISON),
    "comparison without a plan": lambda: plots.comparison(replace(COMPARISON, rows=())),
    "tried": lambda: plots.tried(RESULT),
    "convergences": lambda: plots.convergences(COMPARISON, "random"),
    "cost": lambda: plots.cost(ESTIMATED),
    "costs": lambda: plots.cost({"planned": ESTIMATED, "estimate": ESTIMATED.estimate}),
    "spread": lambda: plots.spread(simulate_spread(PLAN, Jitter(0.1, 0.2), runs=5)),
    "gantt": lambda: plots.gantt(TRACE),
    "gantt of a step": lambda: plots.gantt(TRACE, step=1),
    "empty gantt": lambda: plots.gantt(Trace((), ("a",))),
    "loss": lambda: plots.loss(RUN),
    "no loss": lambda: plots.loss(EMPTY_RUN),
    "losses": lambda: plots.losses({"dense": RUN, "int8": EMPTY_RUN}),
    "losses over seconds": lambda: plots.losses({"dense": RUN}, over="seconds"),
    "step times": lambda: plots.step_times(RUN),
    "no step times": lambda: plots.step_times(EMPTY_RUN),
    "dag": lambda: plots.dag(PLAN.problem.workload),
    "dag of a plan with skips and ties": lambda: plots.dag(CAPTURED),
    "grid of a captured plan": lambda: plots.allocation_grid(CAPTURED),
    "traces": lambda: plots.compare_traces(TRACE, simulate(PLAN)),
    "report": lambda: plots.report(REPORT),
    "report of a run without steps": lambda: plots.report(replace(REPORT, terms={"catalog": TERMS})),
}

PAGE_CALLS: dict[str, Any] = {
    "throughput": lambda: plots.throughput(RUN),
    "no throughput": lambda: plots.throughput(EMPTY_RUN),
    "perplexity": lambda: plots.perplexity(RUN),
    "no perplexity": lambda: plots.perplexity(EMPTY_RUN),
    "accuracy": lambda: plots.accuracy(RUN),
    "tokens of experts": lambda: plots.tokens_of_experts(RUN),
    "no experts": lambda: plots.tokens_of_experts(EMPTY_RUN),
    "step gantt": lambda: plots.step_gantt(PLAN),
    "step gantt of a pipeline of groups": lambda: plots.step_gantt(grouped_plan(2), pipeline=0),
    "memory of groups": lambda: plots.memory(grouped_plan(2)),
    "collectives": lambda: plots.collectives(made_profile(preset("tiny-gpt"), collectives=made_collectives())),
    "no collectives": lambda: plots.collectives(made_profile(preset("tiny-gpt"))),
    "link use": lambda: plots.link_use(PLAN),
    "stage times": lambda: plots.stage_times(ESTIMATED),
    "memory": lambda: plots.memory(ESTIMATED),
    "memory over time": lambda: plots.memory_over_time(PLAN),
    "memory of a pipeline": lambda: plots.memory_over_time(PLAN, pipeline=0),
}
"""Calls that return the page's own figure."""


@pytest.mark.parametrize(
    "call", [plots.memory_of_run, plots.traffic_of_run, plots.life_of_run, plots.load_of_hosts, plots.traffic_of_hosts]
)
@pytest.mark.parametrize("has_begun", [False, True])
def test_figures_of_a_run_show_themselves(call: Any, has_begun: bool, tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "run")
    folder.path.mkdir()
    save_plan(PLAN, folder.plan_file)
    save_config(TrainConfig(steps=4), folder.config_file)
    status = RunStatus(run="run", state="stopped", created_unix_s=1.0, ended_unix_s=9.0, ranks=len(PLAN.ranks))
    write_status(folder.status_file, status)
    if has_begun:
        for rank in range(len(PLAN.ranks)):
            write(folder.path, rank, phase("training"), {"type": "origin", "unix_s": 2.0})
            write(folder.path, rank, *(step_record(rank, step, len(PLAN.ranks), 0.1 * step) for step in range(3)))
    html = call(Run(folder.path))._repr_mimebundle_()["text/html"]
    assert html.count("data-root-id") == 1
    assert "http://" not in html


@pytest.mark.parametrize("name", PAGE_CALLS)
def test_figures_of_the_page_show_themselves_without_urls(name: str) -> None:
    drawn = PAGE_CALLS[name]()
    assert isinstance(drawn, figure)
    for _ in range(2):  # a cell may show it again
        html = drawn._repr_mimebundle_()["text/html"]
        assert html.count("data-root-id") == 1
        assert "http://" not in html
        assert "https://" not in html


@pytest.mark.parametrize("name", CALLS)
def test_plots_render_without_urls(name: str) -> None:
    drawn = CALLS[name]()
    assert isinstance(drawn, hv.Overlay)
    script, _ = components(hv.render(drawn, backend="bokeh"))
    assert "http://" not in script
    assert "https://" not in script


def test_cell_output_links_nothing() -> None:
    drawn = plots.loss(RUN)
    data, _ = hv.Store.renderers["bokeh"].components(drawn)
    assert "data:text/css;base64," in data["text/html"]
    assert re.findall(r"https://cdn[^\"' ]*", data["text/html"]) == []


@pytest.mark.parametrize(("over", "x"), [("steps", 3), ("seconds", 1.6), ("bytes", 4.0), ("dollars", 1.6 * 0.6 / 3600)])
def test_losses_end_at_what_was_spent(over: Any, x: float) -> None:
    curve = plots.losses({"dense": RUN}, over=over).get(0)
    assert (curve.dimension_values(0)[-1], curve.dimension_values(1)[-1]) == pytest.approx((x, 0.0))
    with pytest.raises(InvalidInput, match="over: must be one of steps, seconds, bytes, dollars"):
        plots.losses({}, over="hours")  # type: ignore[arg-type]


def test_style_sheets_that_are_not_installed_keep_their_link() -> None:
    link = '"https://cdn.holoviz.org/panel/1.0/dist/css/no-such-file.css?v=1"'
    assert without_links(link) == link
    assert without_links(link.replace("no-such-file", "../../x")) == link.replace("no-such-file", "../../x")
    assert without_links(link.replace("no-such-file", "loading")).startswith('"data:text/css;base64,')


def test_every_name_resolves() -> None:
    for name in plots.__all__:
        assert callable(getattr(plots, name)) or name == "live"
    assert set(plots.__all__) <= set(dir(plots))
    with pytest.raises(AttributeError, match="nonsense"):
        plots.nonsense  # noqa: B018


def test_a_dag_is_written_as_one_page_that_links_nothing(tmp_path: Path) -> None:
    page = plots.write_dag(CAPTURED, tmp_path / "dag.html").read_text(encoding="utf-8")
    assert "<title>dag-3</title>" in page
    assert "op17" in page
    assert not re.findall(r"""<(?:script|link|img)[^>]*(?:src|href)=["'](?!data:)""", page)
    with pytest.raises(InvalidInput, match="cannot be written"):
        plots.write_dag(NETWORK, tmp_path / "missing" / "dag.html")
    with pytest.raises(InvalidInput, match="is of test-gpt"):
        plots.dag(NETWORK, PLAN)


@pytest.mark.parametrize("call", [plots.cost, plots.memory])
def test_plans_without_an_estimate_are_refused_with_the_remedy(call: Any) -> None:
    with pytest.raises(InvalidInput, match="estimate_plan"):
        call(PLAN)


def test_importing_plots_loads_no_plotting_library() -> None:
    assert imported("import hetplanner.plots", "bokeh", "holoviews", "panel", "torch", "pandas") == []


@pytest.mark.notebook
def test_a_kernel_shows_the_plot_and_links_nothing() -> None:
    cells = ["import hetplanner.plots as plots", "plots.convergence([])"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=HANG_S, kernel_name="python3").execute()
    (shown,) = (o.data["text/html"] for o in notebook.cells[1].outputs if o.output_type == "execute_result")
    assert "root_id" in shown
    assert not re.findall(r"""(?:src|href|url)["']?\s*[=:]\s*["']https?://""", shown)
    assert "https://cdn" not in shown
