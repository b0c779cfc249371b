"""Stages of captured models: any cut computes the same, chance and statistics included."""

import itertools
import random

import pytest
import torch
from torch import nn

from hetplanner.capture.assemble import capture_workload
from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig, check_trainable
from hetplanner.runtime.model.aten import aten_call
from hetplanner.runtime.model.build import StageModel, boundary_elements
from hetplanner.runtime.model.layout import model_weights, running_buffers
from hetplanner.runtime.model.sample import generate
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.optimizers import StageOptimizer
from hetplanner.workload.calls import ALLOWED_CALLS, EVALUATED_WITH, GETITEM, RANDOM_CALLS
from hetplanner.workload.presets import preset
from hetplanner.workload.trainable import check_captured
from hetplanner.workload.workload import Workload
from tests.support.models.captured_models import FACTORIES
from tests.support.models.programs import CLASSES, MICRO_BATCH, SIDE, VOCAB, residual_workload, tied_workload

KEY = RngKey(3, 1, 2)


def batch_of(workload: Workload, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator, program = torch.Generator().manual_seed(seed), workload.program
    labels = torch.randint(0, CLASSES, program.labels, generator=generator)
    if program.inputs_dtype == "float32":
        return torch.randn(program.inputs, generator=generator), labels
    return torch.randint(0, CLASSES, program.inputs, generator=generator), labels


def stages(workload: Workload, *cuts: int, seed: int = 5) -> list[StageModel]:
    edges = [0, *cuts, len(workload.graph.ops)]
    return [StageModel(workload, a, b, seed) for a, b in itertools.pairwise(edges)]


def step(models: list[StageModel], batch: tuple[torch.Tensor, torch.Tensor], *, recompute: bool = False) -> float:
    """Forward and backward of one micro-batch through all stages; gradients stay in the flat buffers."""
    runners = [StageRunner(model, recompute=recompute) for model in models]
    x = None
    for runner in runners:
        x = runner.forward(0, x, batch if runner.model.needs_batch else None, KEY)
    loss, gradient = float(x), None
    for runner in reversed(runners):
        gradient = runner.backward(0, gradient)
    assert gradient is None
    return loss


def gradients(models: list[StageModel]) -> dict[str, torch.Tensor]:
    """By weight, summed over stages that share it."""
    found: dict[str, torch.Tensor] = {}
    for model in models:
        for weight in model.weights:
            part = model.flat_grad[weight.first : weight.end]
            found[weight.name] = found[weight.name] + part if weight.name in found else part.clone()
    return found


WORKLOADS = {"residual": residual_workload, "dropout": lambda: residual_workload(dropout=0.3), "tied": tied_workload}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_cut_gives_the_same_loss_gradients_and_statistics(name: str, recompute: bool) -> None:
    workload = WORKLOADS[name]()
    batch, num_ops = batch_of(workload), len(workload.graph.ops)
    whole = stages(workload)
    expected, wanted = step(whole, batch), gradients(whole)
    every = [(c,) for c in range(1, num_ops)] + [(1, 2), (2, 3), (1, 2, 3), tuple(range(1, num_ops))]
    for cuts in every:
        parts = stages(workload, *cuts)
        assert step(parts, batch, recompute=recompute) == pytest.approx(expected, abs=1e-5)
        found = gradients(parts)
        assert found.keys() == wanted.keys()
        for weight, gradient in wanted.items():
            assert torch.allclose(found[weight], gradient, atol=1e-5), (cuts, weight)
        running = {n: b for part in parts for n, b in part.running.items()}
        assert all(torch.equal(running[n], b) for n, b in whole[0].running.items())


class Encoder(nn.Module):
    """Drops out of a transposed tensor: its memory lies otherwise behind a boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True), 2)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.table(tokens).flip(2)))


CAPTURED = FACTORIES | {"encoder": lambda: (Encoder(), torch.zeros(2, 8, dtype=torch.int64))}


@pytest.mark.parametrize("name", sorted(CAPTURED))
def test_captured_modules_are_the_same_whatever_the_cut(name: str) -> None:
    workload = capture_workload(CAPTURED[name], name, global_batch=8)
    batch, places = batch_of(workload), workload.boundaries
    assert workload.boundary_elements == tuple(
        boundary_elements(workload, b) for b in range(len(workload.graph.ops) + 1)
    )
    whole = stages(workload)
    expected, wanted = step(whole, batch), gradients(whole)
    rng = random.Random(0)
    for recompute in (False, True):
        parts = stages(workload, *sorted(rng.sample(places, min(len(places), 3 + 6 * recompute))))
        assert step(parts, batch, recompute=recompute) == pytest.approx(expected, rel=1e-5)
        found = gradients(parts)
        assert all(torch.allclose(found[n], g, rtol=1e-3, atol=1e-3) for n, g in wanted.items())


def test_a_stage_is_all_on_its_device() -> None:
    for workload in (residual_workload(dropout=0.5), tied_workload()):
        inputs, labels = (tensor.to("meta") for tensor in batch_of(workload))
        model = StageModel(workload, 0, len(workload.graph.ops), 0, torch.device("meta"))
        for key in (KEY, None):
            assert model.forward(None, (inputs, labels), key).device.type == "meta"
    tokens = torch.zeros(2, 64, dtype=torch.int64, device="meta")
    llama = preset("tiny-llama")
    model = StageModel(llama, 0, len(llama.graph.ops), 0, torch.device("meta"))
    assert model.forward(None, (tokens, tokens), KEY).device.type == "meta"


def test_a_skip_connection_is_relayed_over_a_stage_in_between() -> None:
    workload = residual_workload()
    image = MICRO_BATCH * 6 * SIDE * SIDE
    assert [boundary_elements(workload, b) for b in range(1, 6)] == [
        image,
        2 * image,
        2 * image,
        image,
        MICRO_BATCH * 10,
    ]
    middle = stages(workload, 2, 3)[1]
    x = torch.randn(2 * image)
    out = middle.forward(x, None, KEY)
    assert out.shape == (2 * image,)
    assert torch.equal(out[:image], x[:image])
    assert not middle.needs_batch


def test_only_stages_whose_calls_read_it_need_the_batch() -> None:
    need = [sorted(stage.reads) for stage in stages(tied_workload(), 1, 2, 3, 4)]
    assert need == [["inputs"], ["inputs"], [], [], ["labels"]]  # `body` computes its mask from the tokens


def test_statistics_move_once_a_forward_and_evaluation_uses_them() -> None:
    workload = residual_workload(dropout=0.5)
    model, batch = stages(workload)[0], batch_of(workload)
    assert [b.name for b in running_buffers(workload)][:3] == [
        "stem.norm.running_mean", "stem.norm.running_var", "stem.norm.num_batches_tracked",
    ]  # fmt: skip
    before = {name: buffer.clone() for name, buffer in model.running.items()}
    runner = StageRunner(model, recompute=True)
    runner.evaluate(None, batch)
    assert all(torch.equal(model.running[name], b) for name, b in before.items())
    runner.forward(0, None, batch, KEY)
    once = {name: buffer.clone() for name, buffer in model.running.items()}
    runner.backward(0, None)
    assert all(torch.equal(model.running[name], b) for name, b in once.items())
    assert int(model.running["stem.norm.num_batches_tracked"]) == 1
    x = torch.nn.functional.conv2d(batch[0], model.named_weights()["stem.conv.weight"], padding=1)
    assert torch.allclose(once["stem.norm.running_mean"], 0.1 * x.mean((0, 2, 3)), atol=1e-6)
    evaluated = runner.evaluate(None, batch)
    assert evaluated == runner.evaluate(None, batch)
    assert evaluated != runner.forward(1, None, batch, KEY)


def test_chance_depends_on_the_key_and_leaves_torchs_generator_alone() -> None:
    workload = residual_workload(dropout=0.5)
    model, batch = stages(workload)[0], batch_of(workload)
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    with torch.no_grad():
        base = model.forward(None, batch, KEY)
        assert torch.equal(torch.rand(3), expected)
        assert torch.equal(model.forward(None, batch, KEY), base)
        for other in (RngKey(4, 1, 2), RngKey(3, 2, 2), RngKey(3, 1, 3)):
            assert not torch.equal(model.forward(None, batch, other), base)


def test_initial_weights_do_not_depend_on_the_cut_and_tied_replicas_are_equal() -> None:
    workload = tied_workload()
    whole, parts = stages(workload)[0], stages(workload, 2)
    assert [w.name for w in whole.weights] == ["table.weight", "table.shift", "body.weight"]
    for part in parts:
        assert all(torch.equal(w, whole.named_weights()[name]) for name, w in part.named_weights().items())
    front, back = parts
    assert front.tied == {"table": (72, 72 + 8 * VOCAB)}
    assert back.tied == {"table": (0, 8 * VOCAB)}
    assert (front.own_end, back.own_end) == (72, 0)
    assert list(back.saved_tensors()) == []
    assert not torch.equal(stages(workload, seed=6)[0].flat, whole.flat)
    assert [w.users for w in model_weights(workload)] == [(0, 3), (0,), (1,)]


def test_a_fill_outside_of_the_weight_is_refused() -> None:
    workload = tied_workload()
    parameter = workload.program.parameters["body.weight"]
    call = parameter.init[0]
    for changed, message in (
        (call.replace(view=(60, (2, 3), (3, 1))), r"init\[0\] \(normal_\).view: must lie inside"),
        (call.replace(call="values_", args=(1.0, 2.0)), r"init\[0\] \(values_\): "),
        (call.replace(call="trunc_normal_", args=(1.0, 2.0)), r"init\[0\] \(trunc_normal_\): "),
    ):
        wrong = {"body.weight": parameter.replace(init=(changed,))}
        program = workload.program.replace(parameters=workload.program.parameters | wrong)
        with pytest.raises(InvalidInput, match=f"parameter body.weight: {message}"):
            stages(workload.replace(program=program))


class Odd(nn.Module):
    """Filled in the ways that are not plain: cut-off normal, a part, a table of numbers, a padded vector."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 300, padding_idx=0)
        nn.init.trunc_normal_(self.table.weight, std=0.02, a=-0.03, b=0.03)
        with torch.no_grad():
            self.table.weight[1].fill_(7.0)
        self.scale = nn.Parameter(torch.linspace(1, 2, 300))
        self.bias = nn.Parameter(torch.zeros(300))
        self.bias.data = nn.functional.pad(self.bias.data, (0, 0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens) * self.scale + self.bias


def test_recorded_fills_are_repeated() -> None:
    model = stages(capture_workload(lambda: (Odd(), torch.zeros(2, 8, dtype=torch.int64)), "odd"))[0]
    table = model.named_weights()["table.weight"]
    assert torch.all(table[1] == 7.0)
    rest = torch.cat((table[:1], table[2:]))
    assert rest.abs().max() <= 0.03
    assert rest.std() == pytest.approx(0.0148, abs=1e-3)  # a normal of 0.02 cut off at 1.5 deviations
    assert torch.allclose(model.named_weights()["scale"], torch.linspace(1, 2, 300))
    assert not model.named_weights()["bias"].any()


def odd(names: tuple[str, ...]) -> tuple[nn.Module, torch.Tensor]:
    """A module of which these parameters are frozen."""
    module = Odd()
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module, torch.zeros(2, 8, dtype=torch.int64)


def test_a_frozen_parameter_has_no_gradient_and_no_state() -> None:
    workload = capture_workload(lambda: odd(("scale",)), "frozen")
    check_trainable(workload)
    assert workload.program.frozen == ("scale",)
    assert workload.graph.num_params - workload.graph.num_trained == 300
    model = StageModel(workload, 0, len(workload.graph.ops), 0)
    assert model.flat.numel() == workload.graph.num_trained
    assert torch.allclose(model.frozen, torch.linspace(1, 2, 300)), "filled as when it was trained"
    model.forward(None, (torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, 8, dtype=torch.int64))).backward()
    assert model.flat_grad.any()
    optimizer = StageOptimizer(workload, 0, len(workload.graph.ops), TrainConfig(), model.flat, model.flat_grad)
    assert optimizer.states["mean"].numel() == workload.graph.num_trained
    lying = workload.replace(program=workload.program.replace(frozen=()))
    with pytest.raises(InvalidInput, match="trained weights in the graph"):
        check_trainable(lying)


def test_a_model_of_frozen_parameters_alone_is_refused() -> None:
    every = tuple(name for name, _ in Odd().named_parameters())
    with pytest.raises(InvalidInput, match="no parameter is trained"):
        capture_workload(lambda: odd(every), "frozen")


# -- the list of calls --------------------------------------------------------------------------------


def test_allowed_calls_exist_write_nothing_and_draw_only_if_listed() -> None:
    for name in ALLOWED_CALLS - {GETITEM}:
        schema, tags = aten_call(name).function._schema, aten_call(name).function.tags
        assert not schema.is_mutable, name
        assert not any(argument.is_out for argument in schema.arguments), name
        assert (torch.Tag.nondeterministic_seeded in tags) == (name in RANDOM_CALLS), name
        assert "file" not in str(schema), name
        assert not name.startswith(("empty", "set", "as_strided", "resize")), name
    for name, (argument, _) in EVALUATED_WITH.items():
        assert argument in [n for n, _ in aten_call(name).positional], name


@pytest.mark.parametrize(
    "name", ["from_file.default", "relu_.default", "empty.memory_format", "save.default", "_print"]
)
def test_other_calls_are_refused_naming_them(name: str) -> None:
    workload = residual_workload()
    nodes = [n.replace(call=name) if n.name == "stem_relu" else n for n in workload.program.nodes]
    bad = workload.replace(program=workload.program.replace(nodes=tuple(nodes)))
    with pytest.raises(InvalidInput, match=f"call '{name}' of 'stem_relu' is not among those"):
        check_captured(bad)
    with pytest.raises(InvalidInput, match="is not among those"):
        aten_call(name)


def test_programs_that_do_not_fit_their_graph_are_refused() -> None:
    workload = tied_workload()
    ops = list(workload.graph.ops)
    for changed, message in (
        (workload.replace(captured=workload.graph.replace(ops=(ops[0].replace(num_params=7), *ops[1:]))), "2056 in"),
        (workload.replace(program=None), "can only be planned"),
    ):
        with pytest.raises(InvalidInput, match=message):
            check_captured(changed)


def test_a_model_that_looks_ahead_continues_no_text() -> None:
    workload = tied_workload()
    model = stages(workload)[0]
    assert generate(model, "a", 3, seed=1).startswith("a")
    nodes = [
        n.replace(call="flip.default", args=({"node": "wide"}, [1])) if n.name == "turned" else n
        for n in workload.program.nodes
    ]
    ahead = workload.replace(program=workload.program.replace(nodes=tuple(nodes)))
    with pytest.raises(InvalidInput, match="a token sees those behind it"):
        generate(stages(ahead)[0], "a", 3)
