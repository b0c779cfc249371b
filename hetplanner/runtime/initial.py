"""Initial weights: a pure function of (seed, op), so that they are the same whatever the cut."""

import torch
from torch import Tensor

from hetplanner.runtime.models import stable_seed
from hetplanner.workload.transformer import TransformerConfig

WEIGHT_STD = 0.02
"""Of matrices and embeddings. Source: Radford et al. 2019 (GPT-2's released code)."""


@torch.no_grad()
def initialise(parameters: dict[str, Tensor], config: TransformerConfig, seed: int, op_index: int) -> None:
    """Fills the weights of one op in place.

    Args:
        parameters: the op's weights by local name, in the module's order; drawn in that order.
        config: gives the number of layers; the two projections that write to the residual stream are scaled
            by 1/sqrt(2 · layers) (Radford et al. 2019, section 2.3).
        seed: the run's seed.
        op_index: the op that *owns* the weights (a tied replica passes the owner's, and draws the same).
    """
    generator = torch.Generator().manual_seed(stable_seed(seed, op_index))
    for name, weight in parameters.items():
        if name.endswith("bias"):
            weight.zero_()
        elif weight.ndim == 1:
            weight.fill_(1.0)
        else:
            residual = name in ("out.weight", "down.weight")
            std = WEIGHT_STD / (2 * config.layers) ** 0.5 if residual else WEIGHT_STD
            weight.normal_(0.0, std, generator=generator)
