"""torch.export of a user's module with a summed loss, and what its error messages mean for the user."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.capture import progress
from hetplanner.capture.calls import Call, Ref, flat_calls
from hetplanner.capture.weights import Build, build_without_weights
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.schema import one_line

Factory = Callable[[], Any]
"""Returns (module, example inputs); see `export_model`."""

_CONTRACT = (
    "it must return (module, example_inputs): one example tensor for a module that returns logits [..., classes], or"
    " (inputs, labels) for a module that returns the summed loss"
)


class Wrapper(nn.Module):
    """A module of ours around the user's, whose name does not show in operators."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class _WithLoss(Wrapper):
    """Adds the sum of cross-entropies to a module that returns logits."""

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The summed loss."""
        logits = _logits(self.inner(inputs))
        return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="sum")


class _Whole(Wrapper):
    """A module that returns the summed loss itself."""

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The summed loss."""
        loss: Tensor = self.inner(inputs, labels)
        return loss


def _logits(output: Any) -> Tensor:
    if hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.ndim < 2:
        kind = f"{list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise InvalidInput(f"the module must return logits [batch, ..., classes], got {kind}; {_CONTRACT}")
    return output


@dataclass
class Exported:
    """A module as calls.

    Attributes:
        module: the user's module (with wrappers), its parameters fake.
        inputs, labels: one micro-batch, zeros.
        prefix: path of the wrappers of ours around the user's module; names go without it.
        parameters: every parameter that is used, once, by its first name.
        buffers: constants and running statistics that calls read.
        running: names of the buffers that training moves.
    """

    build: Build
    module: nn.Module
    prefix: str
    inputs: Tensor
    labels: Tensor
    calls: list[Call]
    loss: Ref
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    running: frozenset[str]

    @property
    def frozen(self) -> frozenset[str]:
        """Names of the parameters that are not trained (`requires_grad` is False)."""
        return frozenset(name for name, parameter in self.parameters.items() if not parameter.requires_grad)

    @property
    def mode(self) -> FakeTensorMode:
        """The fake mode of the parameters."""
        return self.build.mode


def export_model(factory: Factory, place: str, micro_batch: int | None = None) -> Exported:
    """Builds a module without weights and exports it in training mode.

    Args:
        factory: returns (module, example inputs). With one example input the module returns logits [..., classes]
            and the sum of cross-entropies is added; with two (inputs, labels) it returns the summed loss itself. The
            first axis of the examples is the micro-batch.
        place: what to call the factory in messages.
        micro_batch: samples instead of the examples'.

    Raises:
        InvalidInput: the factory fails or returns something else, or the module cannot be exported.
    """
    progress.begin("building the model")
    try:
        build = build_without_weights(factory)
    except HetplannerError:
        raise
    except Exception as error:
        raise InvalidInput(one_line(f"{place}: failed: {_told(error)}")) from error
    module, examples = _examples(build.result, place)
    examples = tuple(_resized(e, micro_batch) for e in examples)
    wrapped: Wrapper = _WithLoss(module) if len(examples) == 1 else _Whole(module)
    inputs = examples[0]
    progress.begin("tracing the model")
    try:
        labels = examples[1] if len(examples) == 2 else _labels_of(module.eval(), inputs, build.mode)
        wrapped.train()
        program = torch.export.export(wrapped, (inputs, labels.clone()), strict=False)
    except HetplannerError:
        raise
    except Exception as error:
        raise InvalidInput(
            one_line(f"{place}: the module cannot be exported: {_told(error)}{_remedy(error)}")
        ) from error
    progress.begin("reading the graph")
    return _read(program, build, wrapped, inputs, labels, place)


def export_again(exported: Exported, samples: int) -> tuple[list[Call], dict[str, Tensor]]:
    """Calls and buffers of the same module for micro-batches of so many samples. Raises what torch does."""
    inputs, labels = (_resized(example, samples) for example in (exported.inputs, exported.labels))
    program = torch.export.export(exported.module, (inputs, labels), strict=False)
    calls, _, values, _ = _calls(program, exported.module, exported.prefix, "")
    return calls, values


def _examples(result: Any, place: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], nn.Module):
        raise InvalidInput(f"{place}: returned {type(result).__name__}; {_CONTRACT}")
    module, examples = result
    examples = (examples,) if isinstance(examples, Tensor) else tuple(examples)
    if len(examples) not in (1, 2) or not all(isinstance(e, Tensor) and e.ndim >= 1 and len(e) for e in examples):
        raise InvalidInput(f"{place}: example inputs must be one or two tensors with a batch axis; {_CONTRACT}")
    if len({len(e) for e in examples}) > 1:
        sizes = " and ".join(str(len(e)) for e in examples)
        raise InvalidInput(f"{place}: inputs and labels must hold equally many samples, got {sizes}; {_CONTRACT}")
    return module, examples


def _resized(example: Tensor, micro_batch: int | None) -> Tensor:
    example = example.detach()
    if micro_batch is None or micro_batch == len(example):
        return example
    return example[:1].expand(micro_batch, *example.shape[1:]).clone()


def _labels_of(module: nn.Module, inputs: Tensor, mode: FakeTensorMode) -> Tensor:
    with mode:
        logits = _logits(module(mode.from_tensor(inputs)))
    return torch.zeros(tuple(logits.shape[:-1]), dtype=torch.int64)


def _calls(
    program: Any, module: nn.Module, prefix: str, place: str
) -> tuple[list[Call], Ref, dict[str, Tensor], frozenset[str]]:
    """Calls, loss, buffers by name, and names of those that training moves."""
    first_names = _first_names(module, prefix)
    refs: dict[str, Ref] = {}
    batch = iter(("inputs", "labels"))
    values: dict[str, Tensor] = {}
    for spec in program.graph_signature.input_specs:
        match spec.kind:
            case InputKind.PARAMETER:
                refs[spec.arg.name] = Ref("parameter", first_names[id(module.get_parameter(spec.target))])
            case InputKind.USER_INPUT:
                refs[spec.arg.name] = Ref("batch", next(batch))
            case InputKind.BUFFER | InputKind.CONSTANT_TENSOR:
                name = spec.target.removeprefix(prefix)
                refs[spec.arg.name] = Ref("buffer", name)
                values[name] = _constant(program, module, spec.target)
            case _:
                raise InvalidInput(f"{place}: {spec.arg.name}: {spec.kind.name} cannot be stored; use tensors only")
    running = _running(program.graph_module, refs)
    return *flat_calls(program.graph_module, refs, running), values, running


def _first_names(module: nn.Module, prefix: str) -> dict[int, str]:
    """By id of a parameter, the first of its names."""
    found: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), name.removeprefix(prefix))
    return found


def _read(program: Any, build: Build, module: Wrapper, inputs: Tensor, labels: Tensor, place: str) -> Exported:
    prefix = _prefix(module)
    calls, loss, values, running = _calls(program, module, prefix, place)
    first_names = _first_names(module, prefix)
    value = next((c.value for c in calls if c.name == loss.name), None)
    if not isinstance(value, Tensor) or value.ndim != 0 or not value.is_floating_point():
        raise InvalidInput(f"{place}: the module's loss must be one floating-point number; {_CONTRACT}")
    read = {ref for call in calls for ref in call.reads()}
    parameters: dict[str, Tensor] = {
        name: p for p in module.parameters() if Ref("parameter", name := first_names[id(p)]) in read
    }
    if not any(weight.requires_grad for weight in parameters.values()):
        raise InvalidInput(f"{place}: no parameter is trained: all have requires_grad=False; let some train")
    # No call reads batch norm's counters, but a saved model has them.
    running |= {c for n in running if (c := n.removesuffix("running_mean") + "num_batches_tracked") in values}
    buffers = {n: v for n, v in values.items() if Ref("buffer", n) in read or n in running}
    return Exported(build, module, prefix, inputs, labels, calls, loss, parameters, buffers, running)


def _prefix(module: nn.Module) -> str:
    prefix = ""
    while isinstance(module, Wrapper):
        prefix, module = f"{prefix}inner.", module.inner
    return prefix


def _constant(program: Any, module: nn.Module, name: str) -> Tensor:
    if name in program.constants:
        return program.constants[name]
    return module.get_buffer(name)


def _running(graph: Any, refs: dict[str, Ref]) -> frozenset[str]:
    """Buffers that batch norm moves in training: its arguments 3 and 4."""
    found: set[str] = set()
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.batch_norm.default and node.args[5]:
            found |= {refs[arg.name].name for arg in node.args[3:5] if arg is not None}
    return frozenset(found)


def _told(error: BaseException) -> str:
    """`file:line (function): message` of the innermost frame that is neither torch's nor ours."""
    ours, torchs = str(Path(__file__).parent), str(Path(torch.__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((ours, torchs))]
    frames = [f for f in frames if not f.filename.startswith("<")]
    where = f"{frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name}): " if frames else ""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{where}{type(error).__name__}: {first:.300}"


def _remedy(error: BaseException) -> str:
    text = f"{type(error).__name__} {error}"
    if "data-dependent" in text or "DataDependent" in text or "item()" in text:
        return (
            "; what is computed must not depend on the values of tensors: use torch.where instead of if, no .item() or"
            " .tolist()"
        )
    if "numpy" in text:
        return "; stay in torch inside forward, no .numpy()"
    return ""
