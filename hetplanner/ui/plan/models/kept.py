"""Kept plans: named, on disk, compared two to four side by side, whatever other pages do meanwhile."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import param

from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.runs.plan_store import KeptPlan, PlanStore, is_safe
from hetplanner.ui.plan.models.elastic import static_view
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import count_text, percent_text, seconds_text, shape_text
from hetplanner.units import short_bytes

MOST_COMPARED = 4
LOOK_EVERY_S = 1.0
OF_SWARMS = "a swarm: its steady-state step, without peers that come and go"
"""Beside the name of an elastic plan among static ones."""


class KeptModel(param.Parameterized):
    """The plan store of this home, as one page sees it.

    Attributes:
        kept: what there is, newest first.
        chosen: names to compare, in the order in which they were chosen.
        name_error: what is wrong with the name that was typed; shown beside its field.
        deleted: name of the plan that this page deleted last, which `undo_delete` brings back; ''.
    """

    kept = param.List(default=[])
    chosen = param.List(default=[])
    typed = param.String(default="", doc="The name in the field.")
    name_error = param.String(default="")
    deleted = param.String(default="")

    def __init__(self, session: Session, home: Path | None = None, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self._store = PlanStore(home)
        self._bin: AnyPlan | None = None
        self._due_s = 0.0
        self.look()

    # -- what is there ----------------------------------------------------------------------------

    def poll(self) -> None:
        """Looks at the folder every second: other pages keep and delete too."""
        if time.monotonic() >= self._due_s:
            self.look()

    def look(self) -> None:
        """Looks at the folder now. What is gone is no longer compared, and that is said."""
        self._due_s = time.monotonic() + LOOK_EVERY_S
        kept = self._store.kept()
        if kept == self.kept:
            return
        there = {each.name for each in kept}
        gone = [name for name in self.chosen if name not in there]
        self.kept = kept
        if gone:
            self.chosen = [name for name in self.chosen if name in there]
            self.session.notify("warning", f"{', '.join(gone)}: deleted or renamed on another page.")

    @property
    def names(self) -> list[str]:
        """Newest first."""
        return [each.name for each in self.kept]

    def rows(self) -> list[dict[str, Any]]:
        """The table of kept plans: name, problem, shape, step, throughput, kept."""
        return [self._row(each) for each in self.kept]

    def _row(self, each: KeptPlan) -> dict[str, Any]:
        kept = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.kept_s))
        try:
            plan = self._store.load(each.name)
        except HetplannerError as error:
            return {
                "name": each.name,
                "problem": str(error)[:200],
                "shape": "",
                "step": "",
                "throughput": "",
                "kept": kept,
            }
        estimate = plan.estimate
        return {
            "name": each.name,
            "problem": f"{plan.problem.workload.name} on {plan.problem.cluster.name}",
            "shape": shape_text(plan),
            "step": seconds_text(estimate.step_s if estimate else None),
            "throughput": f"{count_text(estimate.tokens_per_s)} {plan.problem.workload.token_word}/s"
            if estimate
            else "–",
            "kept": kept,
        }

    # -- verbs ------------------------------------------------------------------------------------

    def suggest(self, plan: AnyPlan) -> str:
        """A free name for a plan."""
        estimate = plan.estimate
        step = f" {seconds_text(estimate.step_s)}" if estimate is not None else ""
        what = " what if" if plan.provenance.planner == "what-if" else ""
        if isinstance(plan, ElasticPlan):
            what, counts = " swarm", {len(stage.peers) for stage in plan.stages}
        else:
            counts = {len(stage.replicas) for stage in plan.stages}
        return self._store.free_name(f"{plan.problem.workload.name} {len(plan.stages)}x{max(counts)}{step}{what}")

    def keep(self, plan: AnyPlan) -> bool:
        """Keeps a plan under `name`, or a suggested one; a name that cannot be is explained beside its field."""
        self.name_error = ""
        try:
            name = self._store.keep(plan, self.typed.strip() or self.suggest(plan))
        except InvalidInput as error:
            self.name_error = str(error)
            return False
        self.typed = ""
        self.look()
        if len(self.chosen) < MOST_COMPARED:
            self.chosen = [*self.chosen, name]
        self.session.notify("success", f"Kept as {name}.")
        return True

    def keep_as(self, plan: AnyPlan, wanted: str) -> str:
        """Keeps a plan under a name like this one that is free, and gives the name; '' with a notice if it cannot."""
        with self.session.reporting():
            name = self._store.keep(plan, self._store.free_name(wanted))
            self.look()
            self.session.notify("success", f"Kept as {name}.")
            return name
        return ""

    def rename(self, name: str, new: str) -> bool:
        """Another name for a kept plan; one that cannot be leaves it as it was."""
        with self.session.reporting():
            new = self._store.rename(name, new)
            chosen = [new if each == name else each for each in self.chosen]
            with param.parameterized.discard_events(self):
                self.chosen = chosen  # before the look, which would miss the old name
            self.look()
            self.param.trigger("chosen")
            return True
        self.param.trigger("kept")
        return False

    def delete(self, name: str) -> None:
        """Deletes a kept plan; `undo_delete` brings it back."""
        with self.session.reporting():
            try:
                self._bin = self._store.delete(name)
            except InvalidInput:
                if name not in self.names:
                    raise
                self._bin = None
                self._store.discard(name)  # the file is no plan
            self.chosen = [each for each in self.chosen if each != name]
            self.deleted = name if self._bin is not None else ""
        self.look()

    def undo_delete(self) -> None:
        """Keeps the plan again that was deleted last, under its name or the next one that is free."""
        if self._bin is not None:
            with self.session.reporting():
                name = self._store.keep(self._bin, self._store.free_name(self.deleted))
                self._bin, self.deleted = None, ""
                self.session.notify("success", f"{name} is back.")
        self.look()

    def load(self, name: str) -> AnyPlan | None:
        """A kept plan, or None with a notice."""
        with self.session.reporting(self.look):
            return self._store.load(name)
        return None

    # -- comparing --------------------------------------------------------------------------------

    def choose(self, names: list[str]) -> None:
        """What to compare; more than fit are left out, and that is said."""
        there = [name for name in names if name in self.names]
        # In the order in which they were chosen: a table tells them in its own.
        ordered = [name for name in self.chosen if name in there] + [name for name in there if name not in self.chosen]
        if len(ordered) > MOST_COMPARED:
            self.session.notify("info", f"At most {MOST_COMPARED} plans are compared; the first ones stay.")
        new = ordered[:MOST_COMPARED]
        if new != self.chosen or len(ordered) > MOST_COMPARED:
            self.chosen = new
            if len(ordered) > MOST_COMPARED:
                self.param.trigger("chosen")

    def restore(self, names: str) -> None:
        """What the address remembers: names with commas between; unknown ones are ignored."""
        self.choose([name for name in names.split(",") if is_safe(name)])

    def compared(self) -> dict[str, Plan]:
        """The chosen plans by name, if there are two or more that can be read; of swarms a steady-state step."""
        plans = {}
        for name in self.chosen:
            try:
                plan = self._store.load(name)
                plans[f"{name} ({OF_SWARMS})" if isinstance(plan, ElasticPlan) else name] = static_view(plan)
            except HetplannerError as error:
                self.session.notify("error", f"{name}: {error}")
        return plans if len(plans) > 1 else {}


@dataclass(frozen=True)
class Metric:
    """A row of the comparison: a text for every plan, and which of them are best (none where that has no meaning)."""

    name: str
    texts: tuple[str, ...]
    best: tuple[int, ...] = ()


def comparison(plans: dict[str, Plan]) -> list[Metric]:
    """Plans side by side, metric by metric."""
    every = list(plans.values())
    estimates = [plan.estimate for plan in every]
    problems = {(p.problem.workload.name, p.problem.cluster.name) for p in every}
    step = [e.step_s if e else None for e in estimates]
    word = " or ".join(sorted({plan.problem.workload.token_word for plan in every}))
    rows = [
        _ranked("step time", step, seconds_text, least=True),
        _ranked(f"{word}/s", [e.tokens_per_s if e else None for e in estimates], count_text, least=False),
        _ranked(f"$ per million {word}", [e.usd_per_mtoken if e else None for e in estimates], _usd, least=True),
        Metric("dollars leave out", tuple((e.left_out_text or "–") if e else "–" for e in estimates)),
        _ranked("idle", [e.bubble if e else None for e in estimates], percent_text, least=True),
        Metric("bottleneck", tuple(e.bottleneck.name if e else "–" for e in estimates)),
        Metric("shape", tuple(shape_text(plan) for plan in every)),
        Metric("devices", tuple(f"{len(plan.ranks)} of {len(plan.problem.cluster.devices)}" for plan in every)),
        Metric("tightest memory", tuple(_tightest(plan) for plan in every)),
        Metric("codecs", tuple(_codecs(plan) for plan in every)),
        Metric("schedule", tuple(f"{plan.schedule}, depth {_depths(plan)}" for plan in every)),
        Metric("same place", tuple(_same_places(plan, every[0]) for plan in every)),
        Metric("found by", tuple(plan.provenance.planner for plan in every)),
    ]
    if len(problems) > 1:
        words = tuple(f"{p.problem.workload.name} on {p.problem.cluster.name}" for p in every)
        rows.insert(0, Metric("problem", words))
    return [row for row in rows if any(text != "–" for text in row.texts)]


def _ranked(name: str, values: list[float | None], text: Any, *, least: bool) -> Metric:
    known = [value for value in values if value is not None]
    texts = tuple(text(value) for value in values)
    if len(known) < 2 or max(known) - min(known) < 0.005 * abs(max(known)):
        return Metric(name, texts)
    best = min(known) if least else max(known)
    return Metric(name, texts, tuple(i for i, value in enumerate(values) if value == best))


def _usd(value: float | None) -> str:
    return "–" if value is None else f"${value:.3g}"


def _tightest(plan: Plan) -> str:
    if plan.estimate is None:
        return "–"
    tight = max(plan.estimate.devices, key=lambda d: d.peak_bytes / d.limit_bytes)
    return f"{short_bytes(tight.peak_bytes)} of {short_bytes(tight.limit_bytes)} ({tight.device})"


def _codecs(plan: Plan) -> str:
    links = {str(rule.codec) for rule in plan.link_codecs if rule.codec.is_lossy}
    reductions = {str(stage.reduce_codec) for stage in plan.stages if stage.reduce_codec.is_lossy}
    parts = [", ".join(sorted(links))] if links else []
    parts += [f"reductions {', '.join(sorted(reductions))}"] if reductions else []
    return "; ".join(parts) or "none"


def _depths(plan: Plan) -> str:
    depths = [stage.in_flight for stage in plan.stages]
    return str(depths[0]) if len(set(depths)) == 1 else f"{min(depths)}–{max(depths)}"


def _same_places(plan: Plan, first: Plan) -> str:
    """How many devices serve the stage that they serve in the first plan."""
    if plan is first:
        return "–"
    one, two = (_stages_of_devices(each) for each in (first, plan))
    return f"{sum(one.get(device) == stages for device, stages in two.items())} of {len(two)} devices as in the first"


def _stages_of_devices(plan: Plan) -> dict[str, tuple[int, ...]]:
    return {device: tuple(s for s, _ in places) for device, places in zip(plan.ranks, plan.places_of_rank, strict=True)}
