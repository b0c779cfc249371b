"""What a plan is expected to cost, term by term."""

from collections.abc import Mapping
from typing import Literal

from hetplanner.schema import Name, Noun, Text
from hetplanner.units import short_bytes

NAMED_SITES = 3
"""Sites without a price that are named; of more only the number is said."""


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
        notes: what of the model is trained, if not all; what the estimate leaves out.
        usd_per_mtoken: dollars per million tokens, with egress as far as its price is known; None if a used device's
            price is unknown.
        tokens_per_usd: its reciprocal, tokens for one dollar; None also where a step costs nothing.
        device_usd: dollars of one step for the hours of the devices used.
        egress_usd: dollars of one step for bytes that leave a site at a known price; also where a device has none.
        unpriced_egress_bytes: bytes of one step that leave a site at an unknown price, by the site's name: what the
            dollars leave out. None in files that older versions wrote: they counted sites without a price as free.
    """

    step_s: float
    tokens_per_s: float
    usd_per_mtoken: float | None = None
    tokens_per_usd: float | None = None
    device_usd: float | None = None
    egress_usd: float | None = None
    unpriced_egress_bytes: dict[Name, float] | None = None
    bubble: float
    terms: dict[str, float]
    devices: tuple[DeviceEstimate, ...]
    bottleneck: Bottleneck
    dtfm: DtfmCost | None = None
    notes: tuple[Text, ...] = ()

    @property
    def left_out_text(self) -> str:
        """What the dollars leave out: 'without egress of Oregon and Tokyo (1.2 GB a step, no price known)', or ''."""
        if self.egress_usd is None:
            return ""
        if self.unpriced_egress_bytes is None:
            return "without egress of sites that have no price (an older version wrote this; it counted them as free)"
        return left_out_text(self.unpriced_egress_bytes)


def left_out_text(unpriced_egress_bytes: Mapping[str, float]) -> str:
    """What dollars leave out, in words; '' where nothing. Bytes of one step by the name of the site they leave."""
    if not unpriced_egress_bytes:
        return ""
    dearest = sorted(unpriced_egress_bytes, key=lambda name: -unpriced_egress_bytes[name])
    more = len(dearest) - NAMED_SITES
    names = ", ".join(dearest[:NAMED_SITES]) + (f" and {more} more sites" if more > 0 else "")
    return f"without egress of {names} ({short_bytes(sum(unpriced_egress_bytes.values()))} a step, no price known)"
