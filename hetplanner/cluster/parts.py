"""Parts of a cluster between which no link exists, and how to name them.

Two devices are joined if there is a link each way: what goes forth comes back in every step. Shape legend: D devices.
"""

from collections.abc import Sequence

import numpy as np

# Parts that a message names, and sites or devices of each.
MOST_PARTS = 4
MOST_NAMES = 4


def parts_of(joined_DD: np.ndarray) -> list[list[int]]:
    """Connected components: rows of the devices of each, the largest first (of equal ones that with the first row)."""
    left = np.ones(len(joined_DD), dtype=bool)
    parts = []
    while left.any():
        inside = np.zeros(len(joined_DD), dtype=bool)
        border = np.flatnonzero(left)[:1]
        while len(border):
            inside[border] = True
            border = np.flatnonzero(joined_DD[border].any(axis=0) & ~inside)
        left &= ~inside
        parts.append(np.flatnonzero(inside).tolist())
    return sorted(parts, key=lambda part: (-len(part), part[0]))


def name_parts(parts: Sequence[Sequence[int]], site_D: Sequence[str], id_D: Sequence[str]) -> str:
    """'A, B (12 devices) | C (1 device)': the sites of each part; devices where a site is torn."""
    here = [site for part in parts for site in {site_D[row] for row in part}]
    torn = {site for site in here if here.count(site) > 1}
    texts = []
    for part in parts[:MOST_PARTS]:
        names = list(dict.fromkeys(f"{id_D[r]} at {site_D[r]}" if site_D[r] in torn else site_D[r] for r in part))
        shown = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
        texts.append(f"{shown} ({len(part)} device{'s' if len(part) > 1 else ''})")
    more = f" | … ({len(parts)} parts)" if len(parts) > MOST_PARTS else ""
    return " | ".join(texts) + more
