"""Numbers as a person reads them."""

import math

from hetplanner.units import short_seconds

_DASH = "–"


def seconds_text(value: float | None) -> str:
    """'4.12 s', or a dash for what is not known."""
    return _DASH if value is None or not math.isfinite(value) else short_seconds(value)


def count_text(value: float | None) -> str:
    """'11.9k' for 11900, or a dash."""
    if value is None or not math.isfinite(value):
        return _DASH
    for suffix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}"


def percent_text(share: float | None, digits: int = 1) -> str:
    """'7.3 %' for 0.073, or a dash."""
    return _DASH if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f} %"


def change_text(value: float | None, reference: float | None) -> str:
    """'−22 %' for a value 22 % below its reference, '' where either is unknown."""
    if value is None or not reference or not math.isfinite(value):
        return ""
    change = 100 * (value / reference - 1)
    sign = "−" if change < 0 else "+"
    return f"{sign}{abs(change):.0f} %"


def against_text(value: float, name: str, reference: float) -> str:
    """'−22 % against rank order', or that it is as good."""
    if abs(value - reference) < 0.005 * abs(reference):
        return f"as good as {name}"
    return f"{change_text(value, reference)} against {name}"


def value_text(value: float | None, objective: str) -> str:
    """The objective's value with its unit: seconds; dollars a million tokens; DT-FM's own seconds."""
    if value is None or not math.isfinite(value):
        return _DASH
    return f"${value:.4g}" if objective == "cost" else f"{value:.6g} s" if objective == "dtfm" else short_seconds(value)
