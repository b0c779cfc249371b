"""Capture of modules: the program computes what the module computes; operators, weights, initial values."""

import operator

import pytest
import torch
from torch import nn

from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.export import _Whole, _WithLoss
from hetplanner.capture.presets import captured_preset
from hetplanner.errors import InvalidInput
from hetplanner.schema import checked
from hetplanner.workload.presets import CAPTURED_PRESETS, preset
from hetplanner.workload.program import Program, references
from hetplanner.workload.workload import Workload
from tests.support.models import captured_models
from tests.support.models.captured_models import FACTORIES


def real(value, weights, buffers, batch, nodes):
    """A stored argument as torch has it."""
    if isinstance(value, dict):
        ((kind, name),) = value.items()
        if kind == "dtype":
            return getattr(torch, name)
        if kind == "float":
            return float(name)
        return {"parameter": weights, "buffer": buffers, "batch": batch, "node": nodes}[kind][name]
    if isinstance(value, list | tuple):
        return [real(v, weights, buffers, batch, nodes) for v in value]
    return value


def interpret(workload, weights, inputs, labels):
    """The program's loss; a plain reading of its definition."""
    program, nodes = workload.program, {}
    buffers = {
        name: torch.tensor(
            [
                value
                for value, run in zip(b.values, b.run_lengths or [1] * len(b.values), strict=True)
                for _ in range(run)
            ],
            dtype=getattr(torch, b.dtype),
        ).reshape(b.shape)
        for name, b in program.buffers.items()
    }
    places = (weights, buffers, {"inputs": inputs, "labels": labels}, nodes)
    for node in program.nodes:
        args = real(node.args, *places)
        kwargs = {key: real(value, *places) for key, value in node.kwargs.items()}
        name, _, overload = node.call.partition(".")
        call = operator.getitem if name == "getitem" else getattr(getattr(torch.ops.aten, name), overload)
        nodes[node.name] = call(*args, **kwargs)
        if node.shape is not None:
            assert (tuple(nodes[node.name].shape), nodes[node.name].dtype) == (node.shape, getattr(torch, node.dtype))
    return nodes[program.loss]


@pytest.fixture(scope="module", params=sorted(FACTORIES))
def captured(request):
    return request.param, capture_workload(FACTORIES[request.param], request.param)


def example(workload, module):
    generator = torch.Generator().manual_seed(1)
    program = workload.program
    if program.inputs_dtype == "int64":
        inputs = torch.randint(0, 16, program.inputs, generator=generator)
    else:
        inputs = torch.randn(program.inputs, generator=generator)
    return inputs, torch.randint(0, 10, program.labels, generator=generator)


def test_program_computes_the_modules_loss_and_gradients(captured):
    name, workload = captured
    torch.manual_seed(0)
    module, examples = FACTORIES[name]()
    for dropout in (m for m in module.modules() if isinstance(m, nn.Dropout)):
        dropout.p = 0.0  # random calls draw differently here
    if name == "hf_gpt2":
        fields = captured_models.GPT2 | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        factory = captured_models.config_factory(fields, name, micro_batch=2, seq_len=16)
        workload, (module, examples) = capture_workload(factory, name), factory()
    wrapped = (_Whole if isinstance(examples, tuple) else _WithLoss)(module)
    inputs, labels = example(workload, module)
    expected = wrapped.train()(inputs, labels)
    expected.backward()
    prefix = "inner." if name.startswith("hf") else ""
    weights = {
        n: module.get_parameter(prefix + n).detach().clone().requires_grad_() for n in workload.program.parameters
    }
    got = interpret(workload, weights, inputs, labels)
    got.backward()
    assert got.item() == pytest.approx(expected.item(), rel=1e-6)
    for n, weight in weights.items():
        torch.testing.assert_close(weight.grad, module.get_parameter(prefix + n).grad, rtol=1e-4, atol=1e-5)


def test_a_mask_is_stored_with_run_lengths():
    (mask,) = capture_workload(FACTORIES["masked"], "masked").program.buffers.values()
    assert (mask.num_elements, len(mask.values)) == (90_000, 2 * 300 - 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"run_lengths": (2, 2)}, "run_lengths: must be as many as values, 3, got 2"),
        ({"run_lengths": (1, 1, 1)}, r"values: must be 4 for shape \[2, 2\], got 3"),
        ({}, r"values: must be 4 for shape \[2, 2\], got 3"),
        ({"run_lengths": (1, 0, 3)}, "run_lengths"),
        ({"shape": (10**9, 10**9), "run_lengths": (10**18 - 2, 1, 1)}, "must have at most 268,435,456 bytes in all"),
    ],
)
def test_buffers_that_do_not_fill_their_shape_or_are_huge_are_refused(fields, message):
    program = capture_workload(FACTORIES["masked"], "masked").program
    buffer = {"shape": (2, 2), "dtype": "bool", "values": (True, False, True)} | fields
    with pytest.raises(InvalidInput, match=message):
        checked(Program, program.model_dump() | {"buffers": {"mask": buffer}}, "program")


def test_parameters_are_exact_and_owned_once(captured):
    name, workload = captured
    module, _ = FACTORIES[name]()
    assert workload.graph.num_params == sum(p.numel() for p in module.parameters())
    owned = [p.op for p in workload.program.parameters.values()]
    for op in workload.graph.ops:
        if op.tied is not None:
            assert op.name not in owned, "an op owns weights or uses another's, never both"


def test_what_crosses_boundaries_is_named_by_its_op(captured):
    _, workload = captured
    program, graph = workload.program, workload.graph
    home = {node.name: node.op for node in program.nodes}
    order = {op.name: i for i, op in enumerate(graph.ops)}
    for node in program.nodes:
        for kind, source in references(node):
            if kind == "node" and node.op and home[source] not in (None, node.op):
                assert order[home[source]] < order[node.op]
                assert source in program.outputs[home[source]]
    for op in graph.ops[:-1]:
        assert program.outputs[op.name], f"{op.name} gives nothing"


def test_survives_its_own_json(captured):
    _, workload = captured
    assert Workload.model_validate_json(workload.model_dump_json(exclude_none=True)) == workload


def test_initial_values_are_recorded():
    program = capture_workload(FACTORIES["hf_llama"], "llama").program
    table = program.parameters["model.embed_tokens.weight"]
    assert [(c.call, c.args) for c in table.init] == [("normal_", (0.0, 0.02))]
    program = capture_workload(FACTORIES["conv_net"], "net").program
    assert [(c.call, c.args) for c in program.parameters["1.norm.weight"].init] == [("fill_", (1.0,))]
    assert program.buffers["1.norm.running_var"].running
    low, high = program.parameters["0.weight"].init[0].args
    assert -low == pytest.approx(high) == pytest.approx(1 / 3)  # 1/sqrt(fan in 9)


def test_layers_are_the_repeated_blocks():
    graph = capture_workload(FACTORIES["hf_resnet"], "resnet").graph
    layers = {op.layer: op.name.split(".layer.")[0] for op in reversed(graph.ops) if op.layer is not None}
    assert layers == {0: "resnet.encoder.stages.0.layers.0", 1: "resnet.encoder.stages.1.layers.0",
                      2: "resnet.encoder.stages.1.layers.1"}  # fmt: skip


def test_tied_head_with_its_own_bias_stays_a_pure_user():
    graph = capture_workload(FACTORIES["tied_loss"], "tied").graph
    head = next(op for op in graph.ops if op.kind == "head")
    assert (head.tied, head.num_params) == ("table", 128)
    assert [op.num_params for op in graph.ops if op.kind == "parameter"] == [16]


@pytest.mark.parametrize("name", CAPTURED_PRESETS)
def test_packaged_presets_are_what_capture_gives(name):
    assert captured_preset(name) == preset(name)


class _Filled(nn.Module):
    """Weights filled in every way that can be told in numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = nn.Parameter(torch.randn(3, 4) * 0.02)
        self.listed = nn.Parameter(torch.arange(4.0).log1p())
        self.cut_off = nn.Parameter(torch.empty(3, 4))
        nn.init.trunc_normal_(self.cut_off, std=0.5, a=-1.0, b=1.0)
        self.rows = nn.Embedding(6, 4, padding_idx=1)
        self.padded = nn.Parameter(torch.empty(4))
        nn.init.zeros_(self.padded)
        self.padded.data = nn.functional.pad(self.padded.data, (0, 0))
        self.copied = nn.Parameter(torch.empty(4))
        with torch.no_grad():
            self.copied.copy_(torch.linspace(0, 1, 4))
        local = nn.Parameter(torch.empty(4))
        self.filled_late = local
        nn.init.constant_(local, 2.0)

    def forward(self, x):
        x = self.rows(x) + self.listed + self.padded + self.copied + self.filled_late
        return x @ (self.drawn + self.cut_off).T


def test_every_way_of_filling_a_weight_is_told_in_numbers():
    program = capture_workload(lambda: (_Filled(), torch.zeros(2, 5, dtype=torch.int64)), "filled").program
    init = {name: [(c.call, c.args, c.view) for c in p.init] for name, p in program.parameters.items()}
    assert init["drawn"] == [("normal_", (0.0, 1.0), None), ("mul_", (0.02,), None)]
    assert init["listed"] == [("values_", pytest.approx([0, 0.6931, 1.0986, 1.3863], abs=1e-4), None)]
    assert init["cut_off"] == [("trunc_normal_", (0.0, 0.5, -1.0, 1.0), None)]
    assert init["rows.weight"] == [("normal_", (0.0, 1.0), None), ("fill_", (0.0,), (4, (4,), (1,)))]
    assert init["padded"] == [("zero_", (), None)]
    assert init["copied"] == [("values_", pytest.approx([0, 1 / 3, 2 / 3, 1]), None)]
    assert init["filled_late"] == [("fill_", (2.0,), None)]
