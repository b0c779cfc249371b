"""A run's steps as columns, and as CSV: what was reached, and what it had cost by then."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetplanner.cost.dollars import step_dollars
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.runs.annotations import Annotations
from hetplanner.runs.reading.reader import RunReader

Column = list[float | None]
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets take a cell that begins so for a formula."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a run costs at its cluster's prices: `usd_per_s` of its devices; `usd_per_step` of what leaves a site."""

    usd_per_s: float
    usd_per_step: float = 0.0


def prices_of(plan: AnyPlan) -> Prices | None:
    """Of a plan's devices and of egress, as far as that has a price; None if the price of a used device is unknown.

    Of an elastic plan all its peers count, whether they are there or not; what they send to other sites does not.
    """
    model = CostModel.of(plan.problem)
    if isinstance(plan, ElasticPlan):
        cluster = plan.problem.cluster
        rate = float(model.tables.devices.price_usd_per_s_D[[cluster.device_index(peer) for peer in plan.peers]].sum())
        return Prices(rate) if rate == rate else None
    dollars = step_dollars(plan, 1.0, model.tables, model.links)
    return None if dollars.device_usd is None else Prices(dollars.device_usd, dollars.egress_usd)


def step_columns(steps: Sequence[Any], prices: Prices | None = None) -> dict[str, Column]:
    """Columns of a run's step summaries; what is not known is None.

    Columns: step; loss (nats a token); step_s; tokens; tokens_per_s; and what was spent until the step's end: seconds
    since the first step began, bytes sent by all ranks, dollars.
    """
    names = ("step", "loss", "step_s", "tokens", "tokens_per_s", "seconds", "bytes", "dollars")
    columns: dict[str, Column] = {name: [] for name in names}
    sent = 0
    for count, s in enumerate(steps, 1):
        sent += s.boundary_bytes + s.reduce_bytes
        usd = None if prices is None else prices.usd_per_s * s.end_s + prices.usd_per_step * count
        rate = s.num_tokens / s.step_s if s.step_s else None
        for name, value in zip(names, (s.step, s.loss, s.step_s, s.num_tokens, rate, s.end_s, sent, usd), strict=True):
            columns[name].append(value)
    return columns


def runs_csv(runs: Mapping[str, RunReader], annotations: Mapping[str, Annotations]) -> str:
    """A row a step of every run, as text; the first columns are the run's id, name and tags.

    Args:
        runs: by id, read as far as wanted.
        annotations: by id.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for number, (run_id, reader) in enumerate(runs.items()):
        columns = step_columns(reader.steps(), prices_of(reader.any_plan))
        found = {one.step: one for one in reader.evaluations()}
        for name in ("loss", "perplexity", "accuracy"):
            values = {step: getattr(one, name) for step, one in found.items()}
            columns[f"validation_{name}"] = _at_steps(columns["step"], values)
        if not number:
            table.writerow(["run", "name", "tags", *columns])
        said = annotations.get(run_id, Annotations())
        lead = [safe_cell(cell) for cell in (run_id, said.name, ", ".join(said.tags))]
        for row in zip(*columns.values(), strict=True):
            table.writerow([*lead, *("" if value is None else value for value in row)])
    return text.getvalue()


def safe_cell(text: str) -> str:
    """A person's text as a cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _at_steps(steps: Column, values: Mapping[int, float | None]) -> Column:
    return [values.get(int(step)) if step is not None else None for step in steps]
