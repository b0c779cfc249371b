"""Where labels go on the map, so that neighbours do not cover each other."""

from collections.abc import Sequence
from dataclasses import dataclass

CHAR_PX = 6.6
"""Width of a character at 11 pixels, generously."""
LINE_PX = 16.0
BADGE_PX = 17.0


@dataclass(frozen=True)
class Block:
    """What stands beside a marker: a name, and below it a row of badges. Pixels from the marker, y downwards."""

    left: float
    top: float
    width: float
    height: float


MAX_NAMED = 60


def named_sites(sizes: Sequence[float]) -> list[int]:
    """The sites that are named on a map, the largest first; with more than `MAX_NAMED` nothing could be read."""
    return sorted(range(len(sizes)), key=lambda i: -sizes[i])[:MAX_NAMED]


def badge_px(text: str) -> float:
    """Width of a badge with its gap to the next."""
    return 13.0 + 6.0 * len(text)


def block_size(name: str, badges: Sequence[str]) -> tuple[float, float]:
    """Width and height in pixels of a name with a row of badges."""
    width = max(len(name) * CHAR_PX, sum(map(badge_px, badges)))
    return width, LINE_PX + (BADGE_PX if badges else 0.0)


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of every run of consecutive numbers; runs of two are kept apart ('0–1' is no shorter)."""
    runs: list[tuple[int, int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], n)
        else:
            runs.append((n, n))
    return [part for a, b in runs for part in ([(a, b)] if b != a + 1 else [(a, a), (b, b)])]


def placed_blocks(
    x_px: Sequence[float],
    y_px: Sequence[float],
    radius_px: Sequence[float],
    sizes: Sequence[tuple[float, float]],
    frame_px: tuple[float, float],
) -> list[Block]:
    """A block for every marker, on the side where it covers the least of other markers and earlier blocks.

    Args:
        x_px, y_px: markers on the screen, y downwards.
        radius_px: half their width.
        sizes: width and height of every block.
        frame_px: width and height of the map; what is beyond it cannot be read.
    """
    width, height = frame_px
    far = 1e5
    beyond = [(-far, -far, 0, far), (width, -far, far, far), (-far, -far, far, 0), (-far, height, far, far)]
    taken = beyond + [(x - r, y - r, x + r, y + r) for x, y, r in zip(x_px, y_px, radius_px, strict=True)]
    blocks: list[Block] = []
    for x, y, r, (w, h) in zip(x_px, y_px, radius_px, sizes, strict=True):
        gap = r + 3
        sides = (
            Block(-w / 2, gap, w, h),  # below
            Block(-w / 2, -gap - h, w, h),  # above
            Block(gap, -h / 2, w, h),  # right
            Block(-gap - w, -h / 2, w, h),  # left
            Block(0.6 * gap, 0.6 * gap, w, h),
            Block(-0.6 * gap - w, 0.6 * gap, w, h),
            Block(0.6 * gap, -0.6 * gap - h, w, h),
            Block(-0.6 * gap - w, -0.6 * gap - h, w, h),
        )
        best = min(sides, key=lambda b: sum(_overlap(b, x, y, other) for other in taken))
        blocks.append(best)
        taken.append((x + best.left, y + best.top, x + best.left + w, y + best.top + h))
    return blocks


def _overlap(block: Block, x: float, y: float, other: tuple[float, float, float, float]) -> float:
    left, top = x + block.left, y + block.top
    wide = min(left + block.width, other[2]) - max(left, other[0])
    high = min(top + block.height, other[3]) - max(top, other[1])
    return wide * high if wide > 0 and high > 0 else 0.0
