"""Cross-entropy where each member of a group has the logits of some of the words.

The members exchange three numbers a token: the greatest logit, the sum of exponentials, and the label's logit. As with
one device (see `runtime.model.cross_entropy`) the gradient takes the logits' place, some rows at a time.

Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053), section 3.

Shape legend: N tokens, V words of this member.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.workload.task import IGNORED
from hetplanner.workload.transformer_graph import LOSS_ELEMENTS

SINGLE_TEMPORARIES = 3
"""In float32, of the rows that a single device works on at once; here there is one, and rows take as much memory."""


def summed_cross_entropy(logits_NV: Tensor, labels_N: Tensor, first_word: int, group: DeviceGroup) -> Tensor:
    """The sum of the labels' negative log-probabilities, in nats and in float32, the same on every member.

    It goes backward once: the logits are overwritten then.

    Args:
        logits_NV: of this member's words.
        labels_N: int64, of all words; `IGNORED` where none counts.
        first_word: number of the member's first word.
        group: of the members.
    """
    loss: Tensor = _SummedCrossEntropy.apply(logits_NV, labels_N, first_word, group)
    return loss


def count_correct(logits_NV: Tensor, labels_N: Tensor, first_word: int, group: DeviceGroup) -> Tensor:
    """How many labels have the greatest logit of all words; of equal ones the first counts."""
    value_N, index_N = logits_NV.float().max(dim=1)
    best = torch.stack((value_N.double(), (index_N + first_word).double()))
    best_2kN = group.all_gather(best[:, None, :])
    first_N = best_2kN[0].argmax(dim=0)
    return best_2kN[1].gather(0, first_N[None])[0].long().eq(labels_N).sum()


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor, first_word: int, group: DeviceGroup) -> Tensor:
        rows = max(1, SINGLE_TEMPORARIES * LOSS_ELEMENTS // group.degree // logits_NV.shape[1])
        parts = logits_NV.split(rows)
        greatest_N = torch.cat([part.amax(dim=1).float() for part in parts])
        greatest_N = group.all_reduce(greatest_N, dist.ReduceOp.MAX)
        tops = greatest_N.split(rows)
        sum_N = torch.cat([_above(part, top).exp_().sum(1) for part, top in zip(parts, tops, strict=True)])
        place_N, is_here_N = _places(labels_N, first_word, logits_NV.shape[1])
        label_N = logits_NV.gather(1, place_N[:, None])[:, 0].float().masked_fill(~is_here_N, 0.0)
        sum_N, label_N = group.all_reduce(torch.stack((sum_N, label_N)))
        total_N = sum_N.log() + greatest_N
        ctx.save_for_backward(logits_NV, labels_N, total_N)
        ctx.first_word, ctx.rows = first_word, rows
        return (total_N - label_N).masked_fill(labels_N == IGNORED, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        logits_NV, labels_N, total_N = (saved.detach() for saved in ctx.saved_tensors)
        cuts = (tensor.split(ctx.rows) for tensor in (logits_NV, labels_N, total_N))
        for logits, labels, total in zip(*cuts, strict=True):
            gradient = _above(logits, total).exp_()
            place, is_here = _places(labels, ctx.first_word, logits.shape[1])
            gradient.scatter_add_(1, place[:, None], -is_here.float()[:, None])
            gradient.mul_((labels != IGNORED).float()[:, None] * gradients[0])
            logits.copy_(gradient)
        return logits_NV, None, None, None


def _above(logits_NV: Tensor, level_N: Tensor) -> Tensor:
    """A new tensor in float32: the logits less a level of each token."""
    return torch.sub(logits_NV, level_N[:, None])


def _places(labels_N: Tensor, first_word: int, num_words: int) -> tuple[Tensor, Tensor]:
    """Where a label is among the member's words (0 if it is not), and whether it is."""
    place_N = labels_N - first_word
    is_here_N = (place_N >= 0) & (place_N < num_words)
    return place_N.masked_fill(~is_here_N, 0), is_here_N
