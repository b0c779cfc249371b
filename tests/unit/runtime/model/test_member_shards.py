"""What members of a group have of a range of a single device's buffer."""

import pytest
import torch

from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.runtime.device_group.shards import Shard, make_shards, own_ranges
from hetplanner.runtime.model.layout import stage_weights
from hetplanner.workload.tensor_degrees import Sharding
from hetplanner.workload.workload import Workload
from tests.support.models.architectures import captured
from tests.support.plans.factories import small_gpt

MODELS = {
    "gpt": lambda: small_gpt(vocab=258, heads=4, ffn=66),
    "llama": lambda: small_gpt(family="llama", heads=4, kv_heads=2, tie_embeddings=False),
    "captured, several ranges of columns": lambda: captured("gpt2"),
    "captured, experts": lambda: captured("mixtral"),
}


def members(workload: Workload, degree: int, sharding: Sharding = "tensor") -> list[tuple[Shard, ...]]:
    weights = stage_weights(workload, 0, len(workload.graph.ops))
    groups = (DeviceGroup(index, degree, sharding=sharding) for index in range(degree))
    return [make_shards(workload, weights, group) for group in groups]


def shares(shards: tuple[Shard, ...], ranges: list[tuple[int, int]], *, repeated: bool = True) -> torch.Tensor:
    """Places in the single device's buffer of what a member has, in its own order."""
    parts = [
        b.places_of(first, end) for s, b, first, end in own_ranges(shards, ranges) if repeated or not s.is_repeated
    ]
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("degree", "sharding"), [(1, "tensor"), (2, "tensor"), (4, "zero3")])
def test_members_have_a_range_once_between_them(name: str, degree: int, sharding: Sharding) -> None:
    shards = members(MODELS[name](), degree, sharding)
    size = shards[0][-1].whole.end
    generator = torch.Generator().manual_seed(degree)
    for _ in range(30):
        cuts = torch.randint(0, size + 1, (4,), generator=generator).sort().values.tolist()
        ranges = [(cuts[0], cuts[1]), (cuts[2], cuts[3])]
        expected = torch.cat([torch.arange(first, end) for first, end in ranges])
        places = torch.cat([shares(member, ranges, repeated=i == 0) for i, member in enumerate(shards)])
        assert torch.equal(places.sort().values, expected)


@pytest.mark.parametrize("sharding", ["tensor", "zero3"])
@pytest.mark.parametrize("name", MODELS)
def test_places_are_those_of_the_numbers_that_a_member_holds(name: str, sharding: Sharding) -> None:
    for shards in members(MODELS[name](), 2, sharding):
        whole = torch.arange(shards[-1].whole.end, dtype=torch.float64)
        own = torch.empty(shards[-1].own.end, dtype=torch.float64)
        for shard in shards:
            for there, here in shard.pieces(whole, own):
                here.copy_(there)
        assert torch.equal(shares(shards, [(0, len(whole))]).double(), own)
        ends = [end for _, _, _, end in own_ranges(shards, [(0, len(whole))])]
        assert ends == sorted(ends)
