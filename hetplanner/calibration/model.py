"""The calibration: what measurements say about device kinds, links and transfers, and how much better it predicts.

A file is `hetplanner/calibration@1`. `apply_calibration` writes it into a cluster, which every planner, estimate and
simulation then reads; nothing else needs to know that there was a calibration.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.model import Cluster, Device, LinkValue, TransferCost
from hetplanner.dtypes import DType
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import BytesPerSecond, Name, Noun, Seconds, Text, checked_json, read_text, write_text

CALIBRATION_VERSION = 1
MAX_CALIBRATION_BYTES = 8 * 2**20

Error = Annotated[float, Field(ge=0)] | None
"""Standard error as a share of the value; None where the measurements do not tell this number from others."""


class KindFit(Noun):
    """Devices of one kind.

    Attributes:
        efficiency: share of the kind's peak rate that was reached; above 1 where the peak was stated too low.
        dtype: number format of the peak; None in files of older versions and for measurements in several.
        observations: numbers that it was fitted on.
    """

    kind: Name
    dtype: DType | None = None
    efficiency: Annotated[float, Field(gt=0, le=1e6)]
    efficiency_error: Error = None
    memory_bandwidth: BytesPerSecond | None = None
    memory_bandwidth_error: Error = None
    observations: Annotated[int, Field(strict=True, ge=1)]


class LinkFit(Noun):
    """One link rule of the cluster, by what it lies between; one way."""

    between: Literal["sites", "devices", "inside host"]
    from_name: Annotated[Name, Field(alias="from")]
    to_name: Annotated[Name, Field(alias="to")]
    latency: Seconds
    latency_error: Error = None
    bandwidth: BytesPerSecond
    bandwidth_error: Error = None
    observations: Annotated[int, Field(strict=True, ge=1)]
    model_config = Noun.model_config | {"validate_by_name": True, "validate_by_alias": True}

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it in a cluster, as `rule_name` does."""
        return self.between, self.from_name, self.to_name


class Check(Noun):
    """One number, measured, and as predicted before and after the calibration; seconds."""

    label: Text
    measured_s: float
    before_s: float
    after_s: float


class Calibration(Noun):
    """See the module.

    Attributes:
        cluster: what was measured; of a table's clusters the first.
        source: a trace (of a run) or a table of measured steps.
        description: what was measured.
        when: the date that links are marked with.
        transfer: what a message costs beside its link, a step beside its plan and an operator beside its arithmetic;
            None = as the cluster says.
    """

    cluster: Name
    source: Literal["trace", "table"]
    description: Text = ""
    when: Text = ""
    kinds: tuple[KindFit, ...] = ()
    links: tuple[LinkFit, ...] = ()
    transfer: TransferCost | None = None
    message_error: Error = None
    overlap_error: Error = None
    step_error: Error = None
    launch_error: Error = None
    checks: tuple[Check, ...] = ()

    def mean_error(self, when: Literal["before", "after"]) -> float:
        """Mean relative error of the checks (of a trace: of its step) without and with the calibration."""
        checks = self.checks[:1] if self.source == "trace" else self.checks
        errors = [abs(getattr(c, f"{when}_s") / c.measured_s - 1.0) for c in checks if c.measured_s > 0]
        return sum(errors) / len(errors) if errors else 0.0


def rule_name(cluster: Cluster, rule: int) -> tuple[Literal["sites", "devices", "inside host"], str, str]:
    """What a rule of `cluster.links` lies between, and its two ends."""
    num_sites, num_hosts = len(cluster.site_links), len(cluster.host_links)
    if rule < num_sites:
        site = cluster.site_links[rule]
        return "sites", site.from_site, site.to_site
    if rule < num_sites + num_hosts:
        host = cluster.host_links[rule - num_sites].host
        return "inside host", host, host
    pair = cluster.device_links[rule - num_sites - num_hosts]
    return "devices", pair.from_device, pair.to_device


def apply_calibration(calibration: Calibration, cluster: Cluster) -> Cluster:
    """The cluster with fitted efficiencies, links (marked as measured) and transfer costs.

    Args:
        calibration: of this cluster, or of another one that shares kinds of devices or links with it.
        cluster: what to change; devices and links that the calibration does not name stay as they are.

    Raises:
        InvalidInput: if it names none of the cluster's kinds and links.
    """
    fits = {fit.kind: fit for fit in calibration.kinds}
    links = {fit.key: fit for fit in calibration.links}
    known = {device.kind for device in cluster.devices}
    rules = {rule_name(cluster, i) for i in range(len(cluster.links))}
    if not (fits.keys() & known or links.keys() & rules or (calibration.transfer and not fits and not links)):
        named = sorted(fits) or sorted({name for _, *ends in links for name in ends})
        raise InvalidInput(
            f"calibration of {calibration.cluster!r:.60}: names no device kind or link of cluster {cluster.name!r:.60}"
            f" (it has {', '.join(sorted(known)[:4])}; the calibration has {', '.join(named[:4])});"
            " calibrate this cluster, or give the one that was measured"
        )
    renewed = [
        _renewed(link, links.get(rule_name(cluster, i)), calibration.when) for i, link in enumerate(cluster.links)
    ]
    num_sites, num_hosts = len(cluster.site_links), len(cluster.host_links)
    return cluster.replace(
        devices=tuple(_fitted(d, fits[d.kind]) if d.kind in fits else d for d in cluster.devices),
        site_links=tuple(renewed[:num_sites]),
        host_links=tuple(renewed[num_sites : num_sites + num_hosts]),
        device_links=tuple(renewed[num_sites + num_hosts :]),
        transfer=calibration.transfer or cluster.transfer,
    )


def _fitted(device: Device, fit: KindFit) -> Device:
    memory = device.memory_bandwidth if fit.memory_bandwidth is None else fit.memory_bandwidth
    if fit.efficiency <= 1.0:
        return device.replace(efficiency=fit.efficiency, memory_bandwidth=memory)
    # A share above the whole: it is the peak of this format that was stated too low; the others' rates stay.
    spec = resolve_device(device)
    peak = {
        dtype: rate * (fit.efficiency if fit.dtype in (None, dtype) else spec.efficiency)
        for dtype, rate in spec.peak_flops_per_s.items()
    }
    if fit.dtype is not None:
        peak[fit.dtype] = spec.flops_per_s(fit.dtype) * fit.efficiency
    return device.replace(peak=peak, efficiency=1.0, memory_bandwidth=memory)


def _renewed(link: LinkValue, fit: LinkFit | None, when: str) -> LinkValue:
    if fit is None:
        return link
    return link.replace(latency=fit.latency, bandwidth=fit.bandwidth, source="measured", when=when or None)


def calibration_to_data(calibration: Calibration) -> dict[str, Any]:
    """The calibration file's content as plain data."""
    data = calibration.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"format": f"hetplanner/calibration@{CALIBRATION_VERSION}"} | data


@reader("calibration file", at="place")
def calibration_from_json(text: str | bytes, place: str = "calibration") -> Calibration:
    """A calibration from the text of a file. Raises InvalidInput naming the field inside `place`."""
    return checked_json(Calibration, text, "calibration", CALIBRATION_VERSION, place, from_file=True)


@reader("calibration file", at="path")
def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """A calibration from a file. Raises InvalidInput."""
    return calibration_from_json(read_text(path, MAX_CALIBRATION_BYTES), Path(path).name)


def save_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Writes a calibration file. Raises InvalidInput if the path cannot be written."""
    write_text(path, json.dumps(calibration_to_data(calibration), indent=1, ensure_ascii=False) + "\n")
