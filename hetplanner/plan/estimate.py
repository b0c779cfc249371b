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
    """Closed-form estimate of one step. `terms` (seconds) add up to `step_s`.

    Attributes:
        notes: what the estimate leaves out.
        usd_per_mtoken: dollars per million tokens, egress included; None if a used device's price is unknown.
        tokens_per_usd: its reciprocal, tokens for one dollar; None also where a step costs nothing.
        device_usd: dollars of one step for the hours of the devices used.
        egress_usd: dollars of one step for bytes that leave a site; known even where a device's price is not.
    """

    step_s: float
    tokens_per_s: float
    usd_per_mtoken: float | None = None
    tokens_per_usd: float | None = None
    device_usd: float | None = None
    egress_usd: float | None = None
    bubble: float
    terms: dict[str, float]
    devices: tuple[DeviceEstimate, ...]
    bottleneck: Bottleneck
    dtfm: DtfmCost | None = None
    notes: tuple[Text, ...] = ()
