"""Initial weights: a pure function of (seed, name), so that they are the same whatever the cut."""

import torch
from torch import Tensor

from hetplanner.runtime.draws import stable_seed
from hetplanner.workload.transformer import TransformerConfig

WEIGHT_STD = 0.02
"""Of matrices and embeddings. Source: Radford et al. 2019 (GPT-2's released code)."""


@torch.no_grad()
def fill_transformer_weight(weight: Tensor, name: str, config: TransformerConfig, seed: int) -> None:
    """Fills one weight of a transformer in place.

    Args:
        weight: what to fill.
        name: of the weight in the model.
        config: gives the number of layers; the two projections that write to the residual stream are scaled
            by 1/sqrt(2 · layers) (Radford et al. 2019, section 2.3).
        seed: the run's seed.
    """
    if name.endswith("bias"):
        weight.zero_()
    elif weight.ndim == 1:
        weight.fill_(1.0)
    else:
        residual = name.endswith((".out.weight", ".down.weight"))
        std = WEIGHT_STD / (2 * config.layers) ** 0.5 if residual else WEIGHT_STD
        weight.normal_(0.0, std, generator=torch.Generator().manual_seed(stable_seed(seed, name)))
