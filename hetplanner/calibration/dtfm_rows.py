"""The published DT-FM runs, predicted: one efficiency from one row, one overlap from another, all the rest foretold.

Legend of array suffixes: R rows, E efficiencies and O overlaps of a grid, P pipelines, S stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.calibration.dtfm_runtime import Deployment, iteration_seconds, megatron_seconds
from hetplanner.cluster.model import Cluster, Device, Host, HostLink, Site, SiteLink
from hetplanner.schema import BytesPerSecond, Name, Noun, Seconds, Text, checked_json

System = Literal["dtfm", "dtfm-random", "megatron"]

NUM_STAGES = NUM_PIPELINES = 8
RANDOM_SEEDS = (2022, 2023, 2024)
EFFICIENCY_ROW = ("1", "dtfm", 24, 4096)
OVERLAP_ROW = ("3", "dtfm", 24, 4096)
"""The rows fitted, chosen for what they hold and not for what comes out: case 1 on its scheduled placement sends no
boundary message between hosts, so compute rules it; the same setting of case 3 differs by its links alone."""
CLOSER_THAN = 0.05
"""Placements measured closer than this share cannot be ordered."""


class PublishedLink(Noun):
    """Latency one way, and bandwidth."""

    latency: Seconds
    bandwidth: BytesPerSecond


class PublishedCluster(Noun):
    """Equal hosts of equal devices in one or two regions."""

    regions: tuple[Name, ...]
    hosts_per_region: int
    devices_per_host: int
    kind: Name
    nic: BytesPerSecond | None = None
    inside_host: PublishedLink | None = None
    inside_region: PublishedLink
    between_regions: PublishedLink | None = None

    def build(self, name: str) -> Cluster:
        """The cluster, devices by region and host. Where regions lie is not needed here."""
        hosts = [(f"{region}-{h}", region) for region in self.regions for h in range(self.hosts_per_region)]
        pairs = [
            (a, b, self.inside_region if a == b else self.between_regions) for a in self.regions for b in self.regions
        ]
        inside = self.inside_host
        return Cluster(
            name=name,
            sites=tuple(Site(name=region, latitude=0.0, longitude=0.0) for region in self.regions),
            hosts=tuple(Host(id=h, site=region, nic_out=self.nic, nic_in=self.nic) for h, region in hosts),
            devices=tuple(
                Device(id=f"{h}-{i}", kind=self.kind, host=h) for h, _ in hosts for i in range(self.devices_per_host)
            ),
            site_links=tuple(
                SiteLink(from_site=a, to_site=b, latency=link.latency, bandwidth=link.bandwidth)
                for a, b, link in pairs
                if link is not None
            ),
            host_links=tuple(
                HostLink(host=h, latency=inside.latency, bandwidth=inside.bandwidth) for h, _ in hosts if inside
            ),
        )


class PublishedRow(Noun):
    """One measured number."""

    case: Name
    system: System
    layers: Annotated[int, Field(strict=True, ge=1)]
    batch: Annotated[int, Field(strict=True, ge=1)]
    seconds: Annotated[float, Field(strict=True, gt=0)]

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What names it."""
        return self.case, self.system, self.layers, self.batch

    @property
    def label(self) -> str:
        """For tables."""
        return f"case {self.case}, {self.system}, {self.layers} layers, batch {self.batch}"


class PublishedRuns(Noun):
    """The data file."""

    name: Name
    provenance: Text
    clusters: dict[Name, PublishedCluster]
    rows: tuple[PublishedRow, ...]


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A row and what the simulated runtime says: `use` tells whether it was fitted, foretold, or only checked."""

    label: str
    use: Literal["efficiency", "overlap", "predicted", "check"]
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Two rows that might have been fitted instead.

    Attributes:
        left: larger error that the best efficiency and overlap leave on the two themselves.
        mean_error: of the rows then foretold.
    """

    rows: tuple[str, str]
    efficiency: float
    overlap: float
    left: float
    mean_error: float


@dataclass(frozen=True)
class PublishedFit:
    """How well the published rows are foretold.

    Attributes:
        rows: all of them; the two fitted ones meet their measurement.
        choices: every pair of rows that might have been fitted, so that readers can check the choice made.
    """

    efficiency: float
    overlap: float
    rows: tuple[PredictedRow, ...]
    choices: tuple[Choice, ...]

    @property
    def mean_error(self) -> float:
        """Of the foretold rows, Megatron's left out."""
        return float(np.mean([abs(row.error) for row in self.rows if row.use == "predicted"]))

    def wrong_orders(self) -> list[tuple[str, str]]:
        """Pairs of the same case and setting that are ordered otherwise than measured, all systems together."""
        settings: dict[str, list[PredictedRow]] = {}
        for row in self.rows:
            case, _, setting = row.label.split(", ", 2)
            settings.setdefault(f"{case}, {setting}", []).append(row)
        return [
            (one.label, two.label)
            for rows in settings.values()
            for one, two in itertools.combinations(rows, 2)
            if abs(one.measured_s / two.measured_s - 1.0) >= CLOSER_THAN
            and (one.measured_s < two.measured_s) != (one.predicted_s < two.predicted_s)
        ]

    def to_data(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "efficiency": self.efficiency,
            "overlap": self.overlap,
            "mean_error": self.mean_error,
            "wrong_orders": self.wrong_orders(),
            "rows": [asdict(row) | {"error": row.error} for row in self.rows],
            "choices": [asdict(choice) for choice in self.choices],
        }


@cache
def published_runs() -> PublishedRuns:
    """The data file that comes with the package."""
    place = "dtfm_measured.json"
    text = files("hetplanner.calibration").joinpath(place).read_text("utf-8")
    return checked_json(PublishedRuns, text, "published-runs", 1, place, from_file=True)


def random_placement_PS(seed: int) -> IntArray:
    """Device (node) of every stage of every pipeline in the published random placements.

    Node i runs rank `map[i]`, the map is 0 followed by 1 .. 63 shuffled by numpy's legacy generator; a rank's pipeline
    is rank // 8, its stage rank % 8.
    """
    ranks = np.arange(1, NUM_PIPELINES * NUM_STAGES)
    np.random.RandomState(seed).shuffle(ranks)
    return np.argsort(np.concatenate(([0], ranks))).reshape(NUM_PIPELINES, NUM_STAGES)


def deployments_of(row: PublishedRow) -> list[Deployment]:
    """The placements that a row may have been measured on.

    DT-FM's scheduled placement is the optimum of its objective: in case 1 a pipeline fills one host (every stage has
    one device of each), in case 3 four pipelines lie in either region. Megatron's stages are contiguous by region.
    """
    cluster = published_cluster(row.case)
    by_pipeline = np.arange(NUM_PIPELINES * NUM_STAGES).reshape(NUM_PIPELINES, NUM_STAGES)
    placements = {
        "dtfm": [by_pipeline],
        "dtfm-random": [random_placement_PS(seed) for seed in RANDOM_SEEDS],
        "megatron": [by_pipeline.T],
    }[row.system]
    return [Deployment(cluster, placement, row.layers) for placement in placements]


@cache
def published_cluster(case: str) -> Cluster:
    """The cluster of a case."""
    return published_runs().clusters[case].build(f"case {case}")


def predict_row(row: PublishedRow, efficiency: float, overlap: float) -> float:
    """Seconds of a row, the mean over its possible placements."""
    if row.system == "megatron":
        return float(np.mean([megatron_seconds(d, row.batch, efficiency) for d in deployments_of(row)]))
    return float(np.mean([iteration_seconds(d, row.batch, efficiency, overlap) for d in deployments_of(row)]))


class _Surface:
    """Log of predicted over measured seconds of every row, over a grid of efficiencies and overlaps."""

    def __init__(self, rows: Sequence[PublishedRow]) -> None:
        from scipy.interpolate import RegularGridInterpolator

        self.efficiency_E, self.overlap_O = np.geomspace(0.25, 0.75, 13), np.linspace(0.0, 1.0, 21)
        log_EOR = np.stack([self._log_ratio(row) for row in rows], axis=-1)
        self._at = RegularGridInterpolator((np.log(self.efficiency_E), self.overlap_O), log_EOR)

    def _log_ratio(self, row: PublishedRow) -> FloatArray:
        grid = self.efficiency_E[:, None], self.overlap_O[None, :]
        seconds = [iteration_seconds(d, row.batch, *grid) for d in deployments_of(row)]
        return np.log(np.mean(seconds, axis=0) / row.seconds)

    def __call__(self, log_efficiency: float, overlap: float) -> FloatArray:
        return np.asarray(self._at((log_efficiency, overlap)))

    def meet(self, one: int, two: int) -> tuple[float, float, float]:
        """Efficiency and overlap that meet two rows, and the larger error that is left."""
        from scipy.optimize import least_squares

        low, high = np.log(self.efficiency_E[[0, -1]])
        found = least_squares(
            lambda x: self(x[0], x[1])[[one, two]],
            x0=[np.log(0.43), 0.5],
            bounds=([low, 0.0], [high, 1.0]),
            x_scale=[0.1, 0.1],
        )
        return float(np.exp(found.x[0])), float(found.x[1]), float(np.abs(found.fun).max())


def fit_published() -> PublishedFit:
    """Fits one efficiency and one overlap on the two chosen rows and predicts the others.

    Between the points of its grid the simulated runtime is interpolated for the fit; the predictions are simulated.
    """
    runs = published_runs().rows
    ours = [row for row in runs if row.system != "megatron"]
    keys = [row.key for row in ours]
    surface = _Surface(ours)
    chosen = keys.index(EFFICIENCY_ROW), keys.index(OVERLAP_ROW)
    efficiency, overlap, _ = surface.meet(*chosen)
    choices = []
    for one, two in itertools.combinations(range(len(ours)), 2):
        e, o, left = surface.meet(one, two)
        rest = np.delete(np.exp(surface(float(np.log(e)), o)) - 1.0, [one, two])
        choices.append(Choice((ours[one].label, ours[two].label), e, o, left, float(np.abs(rest).mean())))
    uses = {EFFICIENCY_ROW: "efficiency", OVERLAP_ROW: "overlap"}
    rows = tuple(
        PredictedRow(
            row.label,
            "check" if row.system == "megatron" else uses.get(row.key, "predicted"),  # type: ignore[arg-type]
            row.seconds,
            predict_row(row, efficiency, overlap),
        )
        for row in runs
    )
    return PublishedFit(efficiency, overlap, rows, tuple(choices))
