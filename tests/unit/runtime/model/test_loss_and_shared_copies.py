"""The loss that keeps logits alone, and the copies of weights that micro-batches share, against plain torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.runtime.model.cross_entropy import summed_cross_entropy
from hetplanner.runtime.model.precision import lowered
from hetplanner.workload.task import IGNORED


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [None, torch.tensor(3.7)])
def test_the_loss_has_the_gradient_of_torchs_own_to_the_bit(dtype, factor):
    generator = torch.Generator().manual_seed(0)
    # More than are computed at once.
    logits = (torch.randn(700, 3000, generator=generator) * 4).to(dtype)
    labels = torch.randint(0, 3000, (700,), generator=generator)
    labels[5:9] = IGNORED
    theirs, ours = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected = F.cross_entropy(theirs.float(), labels, reduction="sum")
    found = summed_cross_entropy(ours * 1, labels)
    expected.backward(factor)
    found.backward(factor)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert torch.equal(ours.grad, theirs.grad)


def test_shared_copies_compute_what_autocast_does_and_follow_the_weight():
    generator = torch.Generator().manual_seed(0)
    flat, x = torch.randn(12, generator=generator), torch.randn(5, 4, generator=generator)
    flat_grad = torch.zeros(12)
    ours, theirs = nn.Parameter(flat.view(3, 4)), nn.Parameter(flat.clone().view(3, 4))
    ours.grad, theirs.grad = flat_grad.view(3, 4), torch.zeros(3, 4)
    for step in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            pairs = [(F.linear(x * m, lowered(ours)), F.linear(x * m, theirs)) for m in (1.0, 2.0)]
            assert lowered(ours).data_ptr() == lowered(ours).data_ptr()
        for found, expected in pairs:
            assert torch.equal(found, expected)
            found.sum().backward()
            expected.sum().backward()
        assert torch.equal(flat_grad.view(3, 4), theirs.grad)
        with torch.no_grad():  # as the optimizer does, through a view of the flat buffer
            flat[:].mul_(0.5 + step)
            theirs.mul_(0.5 + step)
    assert lowered(ours) is ours  # without autocast
