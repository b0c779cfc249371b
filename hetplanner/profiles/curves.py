"""A layer's cost at any micro-batch: measured there, or on the line through its two neighbours."""

from collections.abc import Sequence

from hetplanner.profiles.model import LayerCost


def cost_at(rows: Sequence[LayerCost], micro_batch: int) -> LayerCost:
    """One layer's cost on one kind of device at one degree.

    Between two measured micro-batches it lies on the line between them. Beyond them it follows the nearest line, at
    least as steep as a fixed cost allows (0) and at most in proportion to the micro-batch.

    Args:
        rows: of one layer, kind and degree, with unlike micro-batches; at least one.
        micro_batch: samples.
    """
    rows = sorted(rows, key=lambda row: row.micro_batch)
    exact = next((row for row in rows if row.micro_batch == micro_batch), None)
    if exact is not None:
        return exact
    if len(rows) == 1:
        near = far = rows[0]
    elif micro_batch < rows[0].micro_batch:
        near, far = rows[0], rows[1]
    elif micro_batch > rows[-1].micro_batch:
        near, far = rows[-1], rows[-2]
    else:
        near = max((row for row in rows if row.micro_batch < micro_batch), key=lambda row: row.micro_batch)
        far = min((row for row in rows if row.micro_batch > micro_batch), key=lambda row: row.micro_batch)
    found: dict[str, float | None] = {}
    for name in ("forward", "backward", "update", "kept"):
        there, beyond = getattr(near, name), getattr(far, name)
        if there is None:
            found[name] = None
        elif name == "update":  # which no sample changes
            found[name] = there
        else:
            found[name] = _on_line(near.micro_batch, there, far.micro_batch, beyond, micro_batch)
    return near.replace(micro_batch=micro_batch, **found)


def _on_line(near: int, there: float, far: int, beyond: float | None, wanted: int) -> float:
    in_proportion = there * wanted / near
    if beyond is None or near == far:
        return in_proportion
    value = there + (beyond - there) * (wanted - near) / (far - near)
    if near < wanted < far:
        return value
    return min(max(value, min(there, in_proportion)), max(there, in_proportion))
