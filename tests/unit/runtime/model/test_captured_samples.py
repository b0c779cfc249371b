"""A captured model's stage for some samples of a micro-batch computes what it computes for all of them."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hetplanner.capture.assemble import capture_workload
from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.runtime.model.captured import ProgramStage
from hetplanner.runtime.rng import RngKey

CPU = torch.device("cpu")
SAMPLES, TOKENS, WIDTH = 4, 6, 8


class Attention(nn.Module):
    """Attention of heads with dropout; it has no matrix, so that members need not meet."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.scale = kind, nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q = F.dropout(x * self.scale, 0.3)
        mask, k = None, q
        match self.kind:
            case "grouped":
                q, k = q.unflatten(-1, (4, 2)).transpose(1, 2), q.unflatten(-1, (4, 2)).transpose(1, 2)[:, :2]
            case "heads in front":
                q = k = q.unflatten(-1, (2, 4)).transpose(1, 2).flatten(0, 1)
            case "hidden tokens":
                mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(-1)
            case "bias":
                mask = torch.arange(TOKENS * TOKENS, dtype=torch.float32).view(TOKENS, TOKENS)
        found = F.scaled_dot_product_attention(
            q, k, k, mask, dropout_p=0.2, is_causal=mask is None, scale=0.7, enable_gqa=self.kind == "grouped"
        )
        return found.reshape(len(x), TOKENS, WIDTH)


def model(kind: str) -> nn.Module:
    return nn.Sequential(Attention(kind), nn.LayerNorm(WIDTH))


@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("kind", ["three axes", "grouped", "heads in front", "hidden tokens", "bias"])
def test_members_draw_what_one_device_draws(kind: str, degree: int) -> None:
    workload = capture_workload(lambda: (model(kind), torch.zeros(SAMPLES, TOKENS, WIDTH)), "mine")
    end_op = next(i for i, op in enumerate(workload.graph.ops) if op.name.startswith("1"))
    x, labels = torch.randn(SAMPLES, TOKENS, WIDTH), torch.zeros(SAMPLES, TOKENS, dtype=torch.int64)

    def computed(group: DeviceGroup) -> Tensor:
        stage = ProgramStage(workload, 0, end_op, CPU, group)
        stage._places.values[stage._places.of("parameter", "0.scale")] = torch.linspace(1.0, 2.0, WIDTH)
        return stage.compute([], (x, labels), RngKey(1, 2, 3))[0]

    whole = computed(DeviceGroup())
    parts = [computed(DeviceGroup(index, degree, sharding="zero3")) for index in range(degree)]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-6)
