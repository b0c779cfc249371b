"""Compression-aware layers and shared layers: what the workload says of them is what torch does."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.cost import CPU_ATTENTION
from hetplanner.cost.tables import CostTables
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Problem
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel, boundary_elements
from hetplanner.runtime.model.modules import MODULES
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.files import load_workload_file, save_workload
from hetplanner.workload.presets import changed_workload, preset
from hetplanner.workload.transformer import BoundaryLayers
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import small_cluster

KINDS = ["bottleneck:2", "bottleneck:4", "maxout:2", "maxout:4"]


def small(boundary_layers: str | None = None, shared_layers: int = 1, model: str = "tiny-gpt") -> Workload:
    return preset(model, layers=4, global_batch=4, boundary_layers=boundary_layers, shared_layers=shared_layers)


def op(workload: Workload, name: str):
    return next(o for o in workload.graph.ops if o.name == name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["tiny-gpt", "tiny-llama"])
def test_every_boundary_between_layers_is_as_narrow_as_said(kind: str, model: str) -> None:
    workload, dense = small(kind, model=model), small(model=model)
    factor = int(kind[-1])
    between = [k for k in workload.boundaries if workload.graph.ops[k].layer not in (None, 0)]
    assert len(between) == 3
    assert len(workload.boundaries) == len(dense.boundaries)
    elements = 2 * 64 * 128
    assert {workload.boundary_elements[k] for k in between} == {elements // factor}
    assert [boundary_elements(workload, k) for k in range(1, len(workload.graph.ops))] == list(
        workload.boundary_elements[1:-1]
    )
    assert workload.most_stages == 4


def test_layers_stand_behind_every_so_many_and_never_behind_the_last() -> None:
    found = [o.name for o in small("maxout:2:2").graph.ops if o.kind in ("narrow", "widen")]
    assert found == ["layer.1.narrow", "layer.2.widen"]
    assert not [o for o in small("maxout:2:9").graph.ops if o.kind == "narrow"]


class Whole(nn.Module):
    """The runtime's own modules as one model, without the loss; layers that share are one module."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        ops = workload.graph.ops[:-1]
        made = {o.name: MODULES[o.kind](workload.transformer, i) for i, o in enumerate(ops) if o.kind != "head"}
        for o in ops:
            if o.tied and o.kind != "head":
                made[o.name] = made[o.tied]
        head = MODULES["head"](workload.transformer, len(ops) - 1)
        head.weight = made["embedding"].tokens.weight
        self.ops = nn.ModuleList([*made.values(), head])

    def forward(self, x: Tensor) -> Tensor:
        for module in self.ops:
            x = module(x)
        return x


def wide(kind: str | None, shared_layers: int = 1) -> Workload:
    """Wide enough that work element by element is small beside products of matrices."""
    base = preset("tiny-gpt", layers=3, boundary_layers=kind, shared_layers=shared_layers)
    shape = base.transformer.replace(hidden=512, heads=8, ffn=2048)
    return base.replace(transformer=shape, global_batch=2, micro_batch=2)


def forward_flops(module: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        module(x)
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_torchs(kind: str) -> None:
    workload = wide(kind)
    x = torch.empty(2, 64, device="meta", dtype=torch.int64)
    counted = forward_flops(Whole(workload), x)
    # torch counts all pairs of tokens, ours those that a token may see: the difference is taken out.
    hidden, layers = 512, 3
    unseen = layers * 2 * 4 * hidden * (64 * 64 - 64 * 65 // 2)
    ours = 2 * sum(o.forward_flops for o in workload.graph.ops if o.kind != "loss")
    assert ours == pytest.approx(counted - unseen, rel=0.02)
    added = ours - 2 * sum(o.forward_flops for o in wide(None).graph.ops if o.kind != "loss")
    parts = [o.forward_flops for o in workload.graph.ops if o.kind in ("narrow", "widen")]
    assert added == pytest.approx(2 * sum(parts))


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_the_layer_alone_are_torchs(kind: str) -> None:
    workload = wide(kind)
    config, factor = workload.transformer, int(kind[-1])
    narrow, widen = MODULES["narrow"](config, 3), MODULES["widen"](config, 4)
    tokens = 2 * 64
    product = 2 * tokens * 512 * 512 // factor
    expected = product if kind.startswith("bottleneck") else 0
    assert forward_flops(narrow, torch.empty(2, 64, 512, device="meta")) == expected
    assert forward_flops(widen, torch.empty(2, 64, 512 // factor, device="meta")) == product
    assert 2 * op(workload, "layer.1.widen").forward_flops == pytest.approx(product, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_kept_bytes_are_what_autograd_saves(kind: str) -> None:
    """With LayerNorm; on the CPU torch composes RMSNorm of several calls, which keep more than the one we count."""
    workload = small(kind)
    names = [o.name for o in workload.graph.ops]
    first = names.index("layer.0.narrow")
    stage = StageModel(workload, first, first + 2, 0)
    x = torch.randn(2, 64, 128, requires_grad=True)
    own = stage.flat.untyped_storage().data_ptr()
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() != own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        stage.forward(x.reshape(-1), None)
    ours = 2 * sum(o.activation_bytes for o in stage.ops)
    assert ours == pytest.approx(sum(saved.values()), rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_out_varies_as_the_stream_should(kind: str) -> None:
    workload = small(kind)
    first = next(i for i, o in enumerate(workload.graph.ops) if o.kind == "narrow")
    stage = StageModel(workload, first, first + 2, 0)
    out = stage.forward(0.05 * torch.randn(2 * 64 * 128, generator=torch.Generator().manual_seed(0)), None)
    assert float(out.detach().std()) == pytest.approx(1.0, rel=0.1)


def test_the_greatest_of_neighbours_is_what_travels() -> None:
    module = MODULES["narrow"](wide("maxout:4").transformer, 0)
    module.norm_in = module.norm_out = nn.Identity()
    x = torch.tensor([3.0, 1.0, 2.0, -1.0, -5.0, -4.0, -7.0, -6.0]).repeat(64).view(1, 1, 512)
    assert module(x)[0, 0, :4].tolist() == [3.0, -4.0, 3.0, -4.0]


@pytest.mark.parametrize(("kind", "shared"), [("bottleneck:4", 1), ("maxout:2", 1), (None, 2), ("bottleneck:2", 3)])
def test_a_captured_model_agrees(kind: str | None, shared: int) -> None:
    workload = wide(kind, shared)
    example = torch.zeros(2, 64, dtype=torch.int64)
    captured = capture_workload(lambda: (Whole(workload), example), "whole", global_batch=8)
    assert captured.graph.num_params == workload.graph.num_params
    ours, theirs = (sum(o.forward_flops for o in w.graph.ops if o.kind != "loss") for w in (workload, captured))
    unseen = 3 * 4 * 512 * (64 * 64 - 64 * 65 // 2)
    assert ours == pytest.approx(theirs - unseen, rel=0.02)
    narrowest = min(captured.boundary_elements[k] for k in captured.boundaries)
    assert narrowest <= min(workload.boundary_elements[k] for k in workload.boundaries)
    _, losses = train_reference(captured, TrainConfig(steps=2))
    assert losses[1] < losses[0]


def test_shared_weights_count_once_and_live_with_their_first_layer() -> None:
    dense, shared = small(), small(shared_layers=2)
    layer = op(dense, "layer.0.attention").num_params + op(dense, "layer.0.mlp").num_params
    assert shared.graph.num_params == dense.graph.num_params - 2 * layer
    assert op(shared, "layer.3.mlp").tied == "layer.2.mlp"
    assert op(shared, "layer.2.mlp").tied is None
    tables = CostTables(Problem(cluster=small_cluster(2), workload=shared))
    end = len(shared.graph.ops)
    for first, last in ((0, end), (0, 3), (3, end), (1, 4), (3, 7)):
        model = StageModel(shared, first, last, None)
        assert model.flat.numel() == tables.stage_params(first, last)
    names = StageModel(shared, 3, 5, None).named_weights()
    assert "layer.0.mlp.up.weight" in names


def test_shared_layers_train_as_one_weight_used_twice() -> None:
    """The gradient of a shared weight is the sum over its layers; what they were given is not changed."""
    workload = small(shared_layers=4)
    model, losses = train_reference(workload, TrainConfig(steps=12, learning_rate=3e-3))
    assert losses[-1] < losses[0] - 0.3
    assert sum(name.startswith("layer.") for name in model.named_weights()) == 12


def test_options_from_text_files_and_wrong_ones(tmp_path) -> None:
    workload = small("maxout:4:2", 2)
    assert workload.transformer.boundary_layers == BoundaryLayers(kind="maxout", factor=4, every=2)
    save_workload(workload, tmp_path / "w.json")
    assert load_workload_file(tmp_path / "w.json") == workload
    again = changed_workload(workload, "w", layers=6)
    assert again.transformer.boundary_layers == workload.transformer.boundary_layers
    for text in ("bottleneck", "bottleneck:x", "bottleneck:2:3:4", "bottleneck:-2", "maxout:2:0", "maxout:3", "a:2"):
        with pytest.raises(InvalidInput, match="boundary_layers"):
            small(text)
    with pytest.raises(InvalidInput, match="shared_layers"):
        small(shared_layers=0)
    odd = preset("tiny-gpt").transformer.replace(hidden=126, heads=2)
    with pytest.raises(InvalidInput, match=r"multiple of boundary_layers\.factor, got 126 and 4"):
        odd.replace(boundary_layers=BoundaryLayers(kind="maxout", factor=4))
    with pytest.raises(InvalidInput, match="captured as it is"):
        preset("tiny-resnet", shared_layers=2)
