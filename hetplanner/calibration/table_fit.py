"""Fits a cluster to a table of measured steps: a few factors that bring the closed form to the seconds measured.

A table says less than a trace, so few numbers are fitted to it, never more than it has rows. They are one factor on the
efficiency of all devices, seconds of a rank per message, per step and per operator that it launches, and the share of a
message's wire time that its sender goes on. All latencies and all bandwidths have one factor each. Rows may be of
several clusters, which share these numbers.

A step is the longest of several paths, so the error has plateaus: the fit starts from several points.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import Field

from hetplanner.arrays import FloatArray
from hetplanner.calibration.least_squares import Solution, fit_least_squares
from hetplanner.calibration.model import Calibration, Check, KindFit, LinkFit, rule_name
from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.model import Cluster, TransferCost
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, checked, one_line, parse_json, read_text

Parameter = Literal["efficiency", "message", "overlap", "step", "launch", "latency", "bandwidth"]
PARAMETERS: tuple[Parameter, ...] = get_args(Parameter)
TRANSFER = set(TransferCost.model_fields)
"""Parameters of the cluster's transfer cost."""

MAX_TABLE_BYTES = 2**20
MAX_ROWS = 10_000
# Where the cluster says nothing of these, a factor needs something to act on.
FIRST_S = {"message": 1e-4, "step": 1e-3, "launch": 1e-5}
# A factor on the cost of messages, steps and operators may well be 10 or 100 where the cluster says nothing.
MESSAGE_SPREAD = 3.0
# Steps are few and whole: the prior must not pull where they differ by a percent.
STEP_NOISE = 0.005
# Overlap is fitted as a change of it; this much of it is one standard deviation of the prior.
OVERLAP_SPREAD = 0.5
# Where fits begin: shares that overlap, and changes of every other parameter (a factor of e or 1 / e).
OVERLAP_STARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
CHANGE_STARTS = (-1.0, 1.0)


class TableRow(Noun):
    """One line of a table: the name of a plan file, and the seconds of its step."""

    plan: Name
    seconds: Annotated[float, Field(gt=0, le=1e7)]


@dataclass(frozen=True)
class MeasuredStep:
    """A plan and the seconds that one step of it took."""

    label: str
    plan: Plan
    seconds: float


@reader("table of measured steps", at="path")
def read_table(path: str | os.PathLike[str]) -> list[TableRow]:
    """The rows of a table file: CSV with the columns `plan` and `seconds`, or a JSON list of such objects.

    Raises:
        InvalidInput: naming the row inside the file.
    """
    place = one_line(Path(path).name)
    text = read_text(path, MAX_TABLE_BYTES)
    rows = _json_rows(text, place) if Path(path).suffix.lower() == ".json" else _csv_rows(text, place)
    if not rows:
        raise InvalidInput(f"{place}: holds no rows; give at least one measured step")
    if len(rows) > MAX_ROWS:
        raise InvalidInput(f"{place}: must hold at most {MAX_ROWS} rows, got {len(rows)}")
    return [checked(TableRow, row, where) for where, row in rows]


def _json_rows(text: bytes, place: str) -> list[tuple[str, object]]:
    data = parse_json(text, place)
    if not isinstance(data, list):
        raise InvalidInput(f'{place}: must be a list of {{"plan": …, "seconds": …}}')
    return [(f"{place}[{i}]", row) for i, row in enumerate(data)]


def _csv_rows(text: bytes, place: str) -> list[tuple[str, object]]:
    try:
        lines = csv.DictReader(io.StringIO(text.decode("utf-8-sig"), newline=""), strict=True)
        wanted, found = {"plan", "seconds"}, set(lines.fieldnames or ())
        if not wanted <= found:
            has = one_line(", ".join(sorted(found))) or "none"
            raise InvalidInput(f"{place}: must have the columns plan and seconds, has {has:.120}")
        rows: list[tuple[str, object]] = []
        for i, line in enumerate(lines, start=2):
            rows.append((f"{place}: line {i}", {"plan": line["plan"], "seconds": _number(line["seconds"])}))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(one_line(f"{place}: is no CSV text: {error}")) from None
    return rows


def _number(text: str | None) -> object:
    """A number where the text is one; the schema says what is wrong with the rest."""
    try:
        return float(text or "")
    except ValueError:
        return text


def match_plans(rows: Sequence[TableRow], plans: Mapping[str, Plan]) -> list[MeasuredStep]:
    """Rows with their plans.

    Args:
        rows: of a table.
        plans: by file name; a row may leave out the `.json`.

    Raises:
        InvalidInput: if a row names a plan that is not given.
    """
    steps = []
    for i, row in enumerate(rows):
        plan = plans.get(row.plan) or plans.get(f"{row.plan}.json")
        if plan is None:
            given = ", ".join(sorted(plans)[:5]) or "none"
            raise InvalidInput(
                f"table: row {i}: plan {row.plan!r:.80} is not among those given ({given}); add its file"
            )
        steps.append(MeasuredStep(row.plan, plan, row.seconds))
    return steps


def calibrate_table(
    steps: Sequence[MeasuredStep], *, fit: Sequence[str] = ("efficiency",), when: str | None = None
) -> Calibration:
    """Fits the plans' clusters to measured steps.

    Args:
        steps: plans, and their seconds. What clusters share must be stated alike in all of them: the efficiency of a
            kind, a link between the same names, the transfer cost.
        fit: what to fit, of `PARAMETERS`.
        when: date that links are marked with; None takes today.

    Returns:
        The calibration, with every row measured and predicted before and after.

    Raises:
        InvalidInput: for clusters that state otherwise what is fitted, seconds that are no positive number, unknown
            parameters, or fewer rows than parameters.
    """
    _check(steps, fit)
    names = tuple(dict.fromkeys(fit))
    clusters = list({step.plan.problem.cluster.name: step.plan.problem.cluster for step in steps}.values())
    models = [CostModel.of(step.plan.problem) for step in steps]
    measured = np.array([step.seconds for step in steps])
    said = clusters[0].transfer or TransferCost()

    def predicted(x: FloatArray) -> FloatArray:
        values = _Values.of(names, x, said)
        return np.array([values.step_s(step.plan, model) for step, model in zip(steps, models, strict=True)])

    found = fit_least_squares(
        lambda x: np.log(predicted(x) / measured),
        len(names),
        noise=STEP_NOISE,
        bounds=_bounds(names, said),
        starts=_starts(names, said),
        loss="linear",
    )
    as_said, after = _Values.of((), np.zeros(0), said), predicted(found.value)
    before = [as_said.step_s(step.plan, model) for step, model in zip(steps, models, strict=True)]
    return _calibration(steps, names, found, clusters, when or date.today().isoformat()).replace(
        checks=tuple(
            Check(label=s.label, measured_s=s.seconds, before_s=float(b), after_s=float(a))
            for s, b, a in zip(steps, before, after, strict=True)
        )
    )


def _check(steps: Sequence[MeasuredStep], fit: Sequence[str]) -> None:
    if not steps:
        raise InvalidInput("table: holds no rows; give at least one measured step")
    unknown = [name for name in fit if name not in PARAMETERS]
    if unknown or not fit:
        wrong = f"unknown {unknown[0]!r:.40}" if unknown else "nothing to fit"
        raise InvalidInput(f"fit: {wrong}; choose of {', '.join(PARAMETERS)}")
    if len(set(fit)) > len(steps):
        raise InvalidInput(
            f"table: {len(steps)} rows cannot tell {len(set(fit))} parameters ({', '.join(dict.fromkeys(fit))});"
            " measure more plans or fit fewer"
        )
    for step in steps:
        if not (math.isfinite(step.seconds) and step.seconds > 0):
            raise InvalidInput(f"table: {step.label}: seconds must be above 0 and finite, got {step.seconds}")
    _check_alike(steps, fit)
    profiled = [step.label for step in steps if step.plan.problem.profile is not None]
    taken = [name for name in fit if name in ("efficiency", "launch")]
    if taken and profiled:
        raise InvalidInput(
            f"table: {profiled[0]}: its plan has a profile, which goes before the devices' {taken[0]}; fit others"
            " (--fit message,overlap,latency,bandwidth), or plan without the profile"
        )


def _check_alike(steps: Sequence[MeasuredStep], fit: Sequence[str]) -> None:
    """Refuses clusters that state otherwise what is fitted; each must be one version."""
    seen: dict[tuple[str, ...], tuple[object, str]] = {}
    for step in steps:
        for key, value in _shared(step.plan.problem.cluster, fit).items():
            known, label = seen.setdefault(key, (value, step.label))
            if known != value:
                raise InvalidInput(
                    f"table: {step.label}: {' '.join(key)} is another than in {label}; state it alike, or calibrate one"
                    " cluster at a time"
                )


def _shared(cluster: Cluster, fit: Sequence[str]) -> dict[tuple[str, ...], object]:
    """What a fit changes, by what names it: clusters that name it must state it alike."""
    found: dict[tuple[str, ...], object] = {("cluster", cluster.name): cluster}
    if "efficiency" in fit:
        found |= {("the efficiency of", d.kind): resolve_device(d).efficiency for d in cluster.devices}
    if TRANSFER & set(fit):
        found["its transfer cost",] = cluster.transfer or TransferCost()
    if {"latency", "bandwidth"} & set(fit):
        found |= {
            ("the link between", *rule_name(cluster, i)): (link.latency, link.bandwidth)
            for i, link in enumerate(cluster.links)
        }
    return found


def _bounds(names: Sequence[str], said: TransferCost) -> tuple[FloatArray, FloatArray]:
    low = [-said.overlap / OVERLAP_SPREAD - 1e-9 if name == "overlap" else -10.0 for name in names]
    high = [(1.0 - said.overlap) / OVERLAP_SPREAD + 1e-9 if name == "overlap" else 10.0 for name in names]
    return np.array(low), np.array(high)


def _starts(names: Sequence[str], said: TransferCost) -> list[FloatArray]:
    """No change but of one parameter; every share that overlaps."""
    overlaps = [(share - said.overlap) / OVERLAP_SPREAD for share in OVERLAP_STARTS]
    return [
        np.where(np.arange(len(names)) == i, change, 0.0)
        for i, name in enumerate(names)
        for change in (overlaps if name == "overlap" else CHANGE_STARTS)
    ]


@dataclass(frozen=True)
class _Values:
    """Fitted numbers, as factors of what the cluster says where they are factors."""

    efficiency: float
    message_s: float
    each_step_s: float
    launch_s: float
    overlap: float
    latency: float
    bandwidth: float

    @staticmethod
    def of(names: Sequence[str], x: FloatArray, said: TransferCost) -> _Values:
        change = dict(zip(names, x.tolist(), strict=True))

        def seconds(name: str) -> float:
            stated: float = getattr(said, name)
            if name not in change:
                return stated
            return max(stated, FIRST_S[name]) * math.exp(MESSAGE_SPREAD * change[name])

        return _Values(
            efficiency=math.exp(change.get("efficiency", 0.0)),
            message_s=seconds("message"),
            each_step_s=seconds("step"),
            launch_s=seconds("launch"),
            overlap=min(max(said.overlap + OVERLAP_SPREAD * change.get("overlap", 0.0), 0.0), 1.0),
            latency=math.exp(change.get("latency", 0.0)),
            bandwidth=math.exp(change.get("bandwidth", 0.0)),
        )

    def step_s(self, plan: Plan, model: CostModel) -> float:
        """The closed form's step with these numbers."""
        devices = model.tables.devices
        same_D = np.ones(len(devices.class_D))
        devices = replace(devices.scaled(self.efficiency * same_D, same_D), launch_s=self.launch_s)
        tables = model.tables.with_devices(devices)
        rules = plan.problem.cluster.links
        links = model.links.with_rules(
            np.array([link.latency * self.latency for link in rules]),
            np.array([1.0 / (link.bandwidth * self.bandwidth) for link in rules]),
        )
        durations = durations_of(plan, tables)
        said = plan.problem.cluster.transfer or TransferCost()
        optimizer_s_N = durations.optimizer_s_N + (self.each_step_s - said.step)
        durations = replace(durations, message_s=self.message_s, overlap=self.overlap, optimizer_s_N=optimizer_s_N)
        return estimate_plan(plan, durations=durations, model=CostModel(tables, links)).step_s


def _calibration(
    steps: Sequence[MeasuredStep], names: tuple[str, ...], found: Solution, clusters: list[Cluster], when: str
) -> Calibration:
    values = _Values.of(names, found.value, clusters[0].transfer or TransferCost())
    error = dict(zip(names, found.error, strict=True))
    used = {(step.plan.problem.cluster.name, device) for step in steps for device in step.plan.ranks}
    kinds = {d.kind: d for c in reversed(clusters) for d in reversed(c.devices) if (c.name, d.id) in used}
    dtypes = {step.plan.problem.workload.dtype for step in steps}
    named = ", ".join(cluster.name for cluster in clusters[:4]) + (", …" if len(clusters) > 4 else "")
    of = f" on {len(clusters)} clusters ({named})" if len(clusters) > 1 else ""
    links = {fit.key: fit for cluster in clusters for fit in _links(cluster, values, error, len(steps))}
    return Calibration(
        cluster=clusters[0].name,
        source="table",
        description=f"{len(steps)} measured steps{of}; fitted {', '.join(names)}",
        when=when,
        kinds=tuple(
            KindFit(
                kind=kind,
                dtype=next(iter(dtypes)) if len(dtypes) == 1 else None,
                efficiency=resolve_device(device).efficiency * values.efficiency,
                efficiency_error=error["efficiency"],
                observations=len(steps),
            )
            for kind, device in sorted(kinds.items())
            if "efficiency" in names
        ),
        links=tuple(links.values()) if {"latency", "bandwidth"} & set(names) else (),
        transfer=TransferCost(
            message=values.message_s, overlap=values.overlap, step=values.each_step_s, launch=values.launch_s
        )
        if TRANSFER & set(names)
        else None,
        message_error=_times(error.get("message"), MESSAGE_SPREAD),
        overlap_error=_times(error.get("overlap"), OVERLAP_SPREAD),
        step_error=_times(error.get("step"), MESSAGE_SPREAD),
        launch_error=_times(error.get("launch"), MESSAGE_SPREAD),
    )


def _times(error: float | None, spread: float) -> float | None:
    return None if error is None else error * spread


def _links(
    cluster: Cluster, values: _Values, error: Mapping[str, float | None], observations: int
) -> tuple[LinkFit, ...]:
    fits = []
    for i, link in enumerate(cluster.links):
        between, start, end = rule_name(cluster, i)
        fits.append(
            LinkFit(
                between=between,
                from_name=start,
                to_name=end,
                latency=link.latency * values.latency,
                latency_error=error.get("latency"),
                bandwidth=link.bandwidth * values.bandwidth,
                bandwidth_error=error.get("bandwidth"),
                observations=observations,
            )
        )
    return tuple(fits)
