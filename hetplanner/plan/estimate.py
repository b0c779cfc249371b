"""What a plan is expected to cost, term by term."""

from typing import Literal

from hetplanner.schema import Name, Noun, Text


class DeviceEstimate(Noun):
    """One device in one step: seconds it computes, bytes it needs at its peak, bytes it has."""

    device: Name
    busy_s: float
    peak_bytes: float
    limit_bytes: float


class Bottleneck(Noun):
    """What holds the step back most: `step_s` would become `step_s_without` if it took no time."""

    kind: Literal["device", "link", "stage"]
    name: Text
    step_s_without: float
    text: Text


class DtfmCost(Noun):
    """The published DT-FM objective in its own constants. A ranking proxy, not seconds of a real step."""

    data_parallel_s: float
    pipeline_s: float
    total_s: float


class Estimate(Noun):
    """Closed-form estimate of one step. `terms` (seconds) add up to `step_s`; `notes` say what it leaves out."""

    step_s: float
    tokens_per_s: float
    usd_per_mtoken: float | None = None
    bubble: float
    terms: dict[str, float]
    devices: tuple[DeviceEstimate, ...]
    bottleneck: Bottleneck
    dtfm: DtfmCost | None = None
    notes: tuple[Text, ...] = ()
