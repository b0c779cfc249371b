"""AdaTopK's rule as a pure function of times: the slowest link is compressed most, the others in proportion.

With user ratio r and estimated dense seconds R of each link, FusionLLM keeps d / r_i of d elements on link i, with
r_i = max(1, 3 r R_i / max_j R_j): a value sent with a 64-bit index takes three times the bytes of a 32-bit value
alone, so the slowest link then carries 1 / r of its dense bytes. The 3 belongs to that encoding. Here values travel in
16 bits and positions in 16 bits or a bitmap, so we keep the promise and derive the factor: link i may carry
1 / max(1, r R_i / max_j R_j) of its dense bytes, and as many elements are kept as fit in. Of float32 tensors that
makes a factor of 1 at great ratios (2 + 2 bytes for 4) and less at small ones, where a bitmap is shorter than
positions; of 16-bit tensors a factor of 2.

Source: Tang et al. 2024, arXiv 2410.12707 (rule), the factor's derivation is ours.
"""

from collections.abc import Sequence


def adatopk_reductions(dense_s: Sequence[float], ratio: float) -> tuple[float, ...]:
    """How many times fewer bytes each link should carry; 1 leaves a link dense.

    Args:
        dense_s: seconds of a dense message on each link.
        ratio: reduction of the slowest link, at least 1.
    """
    slowest = max(dense_s, default=0.0)
    if slowest <= 0:
        return (1.0,) * len(dense_s)
    return tuple(max(1.0, ratio * seconds / slowest) for seconds in dense_s)
