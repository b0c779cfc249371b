"""What a calibration changed: every number measured and predicted, before and after."""

from typing import Any

from hetplanner.calibration.dtfm_rows import PublishedFit
from hetplanner.calibration.model import Calibration
from hetplanner.units import short_seconds

Columns = dict[str, list[Any]]


def check_columns(found: Calibration) -> Columns:
    """One row for every check with time in it: label, measured, before, after (seconds), and texts of the errors."""
    columns: Columns = {
        name: [] for name in ("label", "measured", "before", "after", "error_before", "error_after", "text")
    }
    for check in found.checks:
        if check.measured_s <= 0:
            continue
        columns["label"].append(check.label)
        for name in ("measured", "before", "after"):
            columns[name].append(getattr(check, f"{name}_s"))
        for name in ("before", "after"):
            columns[f"error_{name}"].append(getattr(check, f"{name}_s") / check.measured_s - 1.0)
        columns["text"].append(short_seconds(check.measured_s))
    return columns


def published_columns(found: PublishedFit) -> Columns:
    """One row for every published run: label, use (fitted, predicted or check), measured, predicted, error."""
    columns: Columns = {name: [] for name in ("label", "use", "measured", "predicted", "error")}
    for row in found.rows:
        columns["label"].append(row.label)
        columns["use"].append("fitted" if row.use in ("efficiency", "overlap") else row.use)
        columns["measured"].append(row.measured_s)
        columns["predicted"].append(row.predicted_s)
        columns["error"].append(row.error)
    return columns


def seconds_range(*values: list[float]) -> tuple[float, float]:
    """Both ends of an axis for these seconds, zeros left out, with a tenth of the span in logarithms at either end."""
    known = [v for column in values for v in column if v > 0]
    if not known:
        return 0.1, 1.0
    low, high = min(known), max(known)
    margin = max((high / low) ** 0.1, 1.1)
    return low / margin, high * margin
