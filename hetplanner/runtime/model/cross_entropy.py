"""Cross-entropy that keeps nothing but the logits, and whose gradient takes their place.

`torch.nn.functional.cross_entropy` on the whole micro-batch keeps float32 log-probabilities, and its backward has two
more float32 tensors of that size. With a vocabulary of 32 k or more they are the greatest part of the last stage. Here
it is called for a few rows at a time, and once more in the backward. Gradients are the same bits.

Source: the fused loss of Liger Kernel (Hsu et al. 2024, arXiv 2410.10989), without its projection.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.workload.task import IGNORED
from hetplanner.workload.transformer_graph import LOSS_ELEMENTS


def _loss_of_rows(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    return F.cross_entropy(logits_NV.float(), labels_N, reduction="sum", ignore_index=IGNORED)


def _parts(logits_NV: Tensor, labels_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    rows = max(1, LOSS_ELEMENTS // logits_NV.shape[1])
    return zip(logits_NV.split(rows), labels_N.split(rows), strict=True)


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        ctx.save_for_backward(logits_NV, labels_N)
        parts = _parts(logits_NV, labels_N)
        return torch.stack([_loss_of_rows(*part) for part in parts]).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits_NV, labels_N = (saved.detach() for saved in ctx.saved_tensors)
        for rows, labels in _parts(logits_NV, labels_N):
            leaf = rows.clone().requires_grad_()
            with torch.enable_grad():
                loss = _loss_of_rows(leaf, labels)
            rows.copy_(torch.autograd.grad(loss, leaf, gradients[0])[0])
        return logits_NV, None


def summed_cross_entropy(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    """The sum of the labels' negative log-probabilities, in nats and in float32.

    It goes backward once: the logits are overwritten then.

    Args:
        logits_NV: of N tokens over V words, of any floating dtype; what made them must not need them.
        labels_N: int64; `IGNORED` where none counts.
    """
    loss: Tensor = _SummedCrossEntropy.apply(logits_NV, labels_N)
    return loss
