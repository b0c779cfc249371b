"""Curves of a run."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import holoviews as hv
from bokeh.plotting import figure

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plots.data.curves import padded_range, rolling_median, series_columns, without_spikes
from hetplanner.plots.data.runs.run_overlays import AXES, VALUES, Over, Value, overlay_columns, value_label
from hetplanner.plots.live import AccuracyCurve, ExpertLoads, PerplexityCurve, ThroughputCurve
from hetplanner.plots.notebook.backend import FRAME, LEGEND, ready
from hetplanner.plots.notebook.stills import still
from hetplanner.plots.theme import line_colour
from hetplanner.runs.reading.reader import Evaluation
from hetplanner.runs.reading.series import prices_of, step_columns
from hetplanner.units import short_seconds


class MeasuredRun(Protocol):
    """What the curves ask of a run; `hetplanner.runs.reading.reader.RunReader` has it."""

    @property
    def any_plan(self) -> AnyPlan:
        """The plan being run."""

    def read_all(self) -> Any:
        """Reads everything written so far."""

    def losses(self) -> Sequence[tuple[int, float]]:
        """(step, training loss)."""

    def validation_losses(self) -> Sequence[tuple[int, float]]:
        """(step, validation loss)."""

    def evaluations(self) -> Sequence[Evaluation]:
        """Every evaluation on held-out data."""

    def expert_loads(self) -> Mapping[str, Sequence[int]]:
        """By op of a mixture of experts, tokens that each expert took."""

    def steps(self) -> Sequence[Any]:
        """Objects with `step`, `step_s` (None: not known), `loss`, `num_tokens`, `end_s` and the bytes sent."""

    def predicted_step_s(self) -> float | None:
        """Seconds of a step, predicted from the ranks' profile before step 0."""


def loss(run: MeasuredRun) -> hv.Overlay:
    """Training and validation loss over steps, as far as the run has come."""
    ready()
    run.read_all()
    training, validation = _pairs(run.losses()), _pairs(run.validation_losses())
    layers: list[hv.Element] = [
        hv.Curve((training["x"], training["y"]), "step", "loss", label="training").opts(
            color="#4477AA", line_width=2, tools=["hover"]
        )
    ]
    if validation["x"]:
        points = hv.Scatter((validation["x"], validation["y"]), "step", "loss", label="validation")
        layers.append(points.opts(color="#EE6677", size=7, tools=["hover"]))
    return hv.Overlay(layers).opts(hv.opts.Overlay(**FRAME | LEGEND, ylabel="loss (nats a token)", title="Loss"))


def losses(runs: Mapping[str, MeasuredRun], over: Over = "steps") -> hv.Overlay:
    """Training loss of several runs by name, to compare what their steps, seconds, bytes or dollars have bought.

    See `overlay`.
    """
    return overlay(runs, "loss", over)


def overlay(runs: Mapping[str, MeasuredRun], value: Value = "loss", over: Over = "steps") -> hv.Overlay:
    """Several runs in one figure.

    Args:
        runs: by the name that the legend shall show.
        value: loss, or throughput.
        over: steps; seconds since the run's first step began; bytes that all ranks have sent; or dollars at the
            cluster's prices. A run of unknown price has no line over dollars.

    Raises:
        InvalidInput: another value, or over something else.
    """
    if over not in AXES:
        raise InvalidInput(f"over: must be one of {', '.join(AXES)}, got {over!r:.60}")
    if value not in VALUES:
        raise InvalidInput(f"value: must be one of {', '.join(VALUES)}, got {value!r:.60}")
    ready()
    layers, words = [], set[str]()
    for i, (name, run) in enumerate(runs.items()):
        run.read_all()
        words.add(run.any_plan.problem.workload.token_word)
        prices = prices_of(run.any_plan) if over == "dollars" else None
        columns = overlay_columns(step_columns(run.steps(), prices), value, over)
        curve = hv.Curve((columns["x"], columns["y"]), over, value, label=name)
        layers.append(curve.opts(color=line_colour(i), line_width=2, tools=["hover"]))
    title = f"{value.capitalize()} over {over}"
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(**FRAME | LEGEND, xlabel=AXES[over], ylabel=value_label(value, words), title=title)
    )


def step_times(run: MeasuredRun) -> hv.Overlay:
    """Measured step times with their running median, against the prediction made before the first step."""
    ready()
    run.read_all()
    columns = _pairs([(s.step, s.step_s) for s in run.steps() if s.step_s is not None])
    predicted = run.predicted_step_s()
    measured = hv.Curve((columns["x"], columns["y"]), "step", "seconds", label="measured")
    median = hv.Curve((columns["x"], rolling_median(columns["y"])), "step", "seconds", label="running median")
    layers: list[hv.Element] = [
        measured.opts(color="#EE6677", line_width=1, alpha=0.6, tools=["hover"]),
        median.opts(color="#EE6677", line_width=2.5),
    ]
    if predicted is not None:
        ends = (columns["x"][:1] or [0.0]) + (columns["x"][-1:] or [1.0])
        label = f"predicted {short_seconds(predicted)}"
        line = hv.Curve((ends, [predicted, predicted]), "step", "seconds", label=label)
        layers.append(line.opts(color="#4477AA", line_width=2, line_dash="dashed"))
    shown = [*without_spikes(columns["y"]), *([predicted] if predicted is not None else [])]
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND, ylim=padded_range(shown, floor=0.0), ylabel="step time (s)", title="Step time"
        )
    )


def throughput(run: MeasuredRun) -> figure:
    """Tokens per second of every step, and their running median; the page's own figure."""
    run.read_all()
    timed = [(s.step, s.num_tokens / s.step_s) for s in run.steps() if s.step_s]
    steps, rates = [step for step, _ in timed], [rate for _, rate in timed]
    return still(ThroughputCurve(), steps, rates, run.any_plan.problem.workload.token_word)


def perplexity(run: MeasuredRun) -> figure:
    """Perplexity (e to the loss) on held-out data, at every evaluation; the page's own figure."""
    run.read_all()
    return still(PerplexityCurve(), run.evaluations())


def accuracy(run: MeasuredRun) -> figure:
    """Share of held-out targets (tokens, or classes) with the model's greatest score; the page's own figure."""
    run.read_all()
    return still(AccuracyCurve(), run.evaluations())


def tokens_of_experts(run: MeasuredRun) -> figure:
    """How many tokens each expert of a mixture of experts took so far, by op, over all ranks."""
    run.read_all()
    return still(ExpertLoads(), run.expert_loads())


def _pairs(pairs: Sequence[tuple[int, float]]) -> dict[str, list[Any]]:
    return series_columns([x for x, _ in pairs], [y for _, y in pairs])
