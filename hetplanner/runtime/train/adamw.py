"""AdamW on one flat buffer: the same numbers as `torch.optim.AdamW`.

`torch.optim` is left out because constructing an optimiser imports the compiler (1 s of CPU in every rank).
Source: Loshchilov and Hutter 2019, algorithm 2.
"""

import torch
from torch import Tensor


class FlatAdamW:
    """Moments of a flat parameter buffer.

    Args:
        flat, flat_grad: values and gradients, updated in place.
        decayed: views into `flat` that weight decay shrinks (matrices; norms and biases are left alone).
    """

    EPS = 1e-8

    def __init__(
        self,
        flat: Tensor,
        flat_grad: Tensor,
        decayed: list[Tensor],
        *,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        self.flat, self.flat_grad, self.decayed = flat, flat_grad, decayed
        self.betas, self.weight_decay = betas, weight_decay
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self._scratch = torch.empty_like(flat)
        self.num_steps = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update with the gradients as they stand."""
        self.num_steps += 1
        beta_1, beta_2 = self.betas
        for weight in self.decayed:
            weight.mul_(1.0 - learning_rate * self.weight_decay)
        self.mean.lerp_(self.flat_grad, 1.0 - beta_1)
        self.square.mul_(beta_2).addcmul_(self.flat_grad, self.flat_grad, value=1.0 - beta_2)
        correction_1, correction_2 = 1.0 - beta_1**self.num_steps, 1.0 - beta_2**self.num_steps
        torch.sqrt(self.square, out=self._scratch)
        self._scratch.div_(correction_2**0.5).add_(self.EPS)
        self.flat.addcdiv_(self.mean, self._scratch, value=-learning_rate / correction_1)
