"""Lines of several runs in one figure: what was reached over what was spent."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from hetplanner.plots.data.curves import Columns, rolling_median, series_columns, thinned

Over = Literal["steps", "seconds", "bytes", "dollars"]
Value = Literal["loss", "throughput"]
AXES: dict[str, str] = {
    "steps": "step",
    "seconds": "seconds since the first step began",
    "bytes": "MB sent by all ranks",
    "dollars": "dollars at the cluster's prices",
}
VALUES: tuple[Value, ...] = ("loss", "throughput")
_SPENT = {"steps": "step", "seconds": "seconds", "bytes": "bytes", "dollars": "dollars"}
_REACHED = {"loss": "loss", "throughput": "tokens_per_s"}


def value_label(value: str, words: Collection[str]) -> str:
    """The label of an axis with one of VALUES, of runs that count `words`: tokens, samples, or some of both."""
    known = sorted(words) or ["tokens"]
    if value == "throughput":
        return f"{' or '.join(known)}/s, running median"
    return f"loss (nats a {' or '.join(word.removesuffix('s') for word in known)})"


def overlay_columns(steps: Mapping[str, Sequence[float | None]], value: str, over: str) -> Columns:
    """x and y of a run; steps at which either is not known are left out.

    Args:
        steps: columns as `hetplanner.runs.reading.series.step_columns` gives them.
        value: of VALUES.
        over: of AXES; bytes become megabytes.
    """
    scale = 1e-6 if over == "bytes" else 1.0
    pairs = zip(steps[_SPENT[over]], steps[_REACHED[value]], strict=True)
    known = [(x * scale, y) for x, y in pairs if x is not None and y is not None]
    y = [y for _, y in known]
    y = rolling_median(y) if value == "throughput" else y
    chosen = thinned(len(known))
    return series_columns([known[i][0] for i in chosen], [y[i] for i in chosen])
