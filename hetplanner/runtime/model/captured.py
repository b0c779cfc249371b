"""The ops of a captured model's stage: its calls, performed one after the other on a list of values.

Everything that a program fixes is looked up once: a call becomes (function, where its arguments are, where its
result goes, which values no later call reads). Free calls that depend on no batch are performed once, when the stage is
built. A random call draws from (seed, step, micro-batch, its name): the same whatever the cut, and on recompute.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from hetplanner.runtime.device_group import sharded_weights
from hetplanner.runtime.device_group.cross_entropy import count_correct
from hetplanner.runtime.device_group.divided_calls import MemberStep
from hetplanner.runtime.device_group.group import ALONE, DeviceGroup, block_ranges, part_range, taken
from hetplanner.runtime.device_group.regathering import Regathering
from hetplanner.runtime.device_group.shards import has_own_rows
from hetplanner.runtime.model.aten import DTYPES, AtenCall, aten_call, drawing
from hetplanner.runtime.model.initial import fill_program_weight
from hetplanner.runtime.model.layout import ModelWeight, crossing_tensors, running_buffers
from hetplanner.runtime.model.precision import is_lowered, lowered
from hetplanner.runtime.rng import RngKey
from hetplanner.weights.names import EXPERTS_NDIM
from hetplanner.workload.calls import CASTING_CALLS, EVALUATED_WITH, RANDOM_CALLS, STATISTICS_CALLS
from hetplanner.workload.capturing.division import Step
from hetplanner.workload.capturing.layouts import Layout
from hetplanner.workload.capturing.samples import RESHAPES, for_samples
from hetplanner.workload.capturing.stage_calls import batch_reads, calls_of
from hetplanner.workload.program import Buffer, Node, Program, references
from hetplanner.workload.workload import Workload

_EVALUATION = RngKey(0, 0, 0)
"""What calls draw from in evaluation that have no other meaning there (`rand`, `bernoulli`)."""
_TENSORS = frozenset(("node", "parameter", "buffer", "batch"))

Env = list[Any]
_Pick = Callable[[Env], tuple[Any, ...]]
_Step = tuple[Callable[..., Any], _Pick, int, tuple[int, ...]]
"""Function, its arguments from the values, where the result goes, places that no later call reads."""


@dataclass(slots=True)
class _Places:
    """Every value that calls read has a place in one list; `values` is the list before the first call."""

    values: Env = field(default_factory=list)
    _of: dict[tuple[str, str], int] = field(default_factory=dict)

    def of(self, kind: str, name: str) -> int:
        """The place of a tensor."""
        if (kind, name) not in self._of:
            self._of[kind, name] = self.hold(None)
        return self._of[kind, name]

    def hold(self, value: Any) -> int:
        """A new place that holds a value."""
        self.values.append(value)
        return len(self.values) - 1

    def pick(self, arguments: list[Any]) -> _Pick:
        """Takes a call's arguments from the values."""
        places = [self._place(argument) for argument in arguments]
        if not all(isinstance(place, int) for place in places):
            return lambda env: tuple(env[p] if isinstance(p, int) else p(env) for p in places)
        if len(places) > 1:
            return itemgetter(*places)
        return (lambda env: (env[places[0]],)) if places else lambda env: ()

    def _place(self, argument: Any) -> Any:
        """A place, or for a list with tensors in it a function that makes the list."""
        if isinstance(argument, dict):
            ((kind, name),) = argument.items()
            if kind in _TENSORS:
                return self.of(kind, name)
        if isinstance(argument, list | tuple) and any(isinstance(part, dict | list | tuple) for part in argument):
            parts = [self._place(part) for part in argument]
            return lambda env: [env[p] if isinstance(p, int) else p(env) for p in parts]
        return self.hold(_decoded(argument))


def _decoded(argument: Any) -> Any:
    """A constant as torch takes it."""
    if isinstance(argument, dict):
        ((kind, text),) = argument.items()
        return DTYPES[text] if kind == "dtype" else float(text)
    return list(argument) if isinstance(argument, tuple) else argument


class ProgramStage:
    """The calls of ops `first_op` to `end_op` and the free calls that they need; see `build.StageOps`.

    Members of a group perform them for their own samples, with rows of each matrix; or with their part of each layer.
    """

    isolates_documents = False  # its attention is its author's

    def __init__(
        self, workload: Workload, first_op: int, end_op: int, device: torch.device, group: DeviceGroup = ALONE
    ) -> None:
        assert workload.program is not None
        self.program, self.device, self.group = workload.program, device, group
        self._whole_shapes = self.program.shape_of
        self._member_steps, self._layouts = dict[str, Step](), dict[str, Layout]()
        self._regathering = Regathering()
        if group.divides_samples:
            self.program = for_samples(self.program, self.program.micro_batch // group.degree)
        elif group.tensor_degree > 1:
            division = workload.division(group.degree)
            self.program, self._member_steps, self._layouts = division.program, division.steps, division.layouts
        self._casts = is_lowered(workload.dtype)
        self._nodes = calls_of(workload, self.program, first_op, end_op)
        self._inputs = [t.node for t in crossing_tensors(workload, first_op)]
        self._outputs = [t.node for t in crossing_tensors(workload, end_op)]
        if end_op == len(workload.graph.ops):
            self._outputs = [self.program.loss]
        self._compared: list[tuple[str, str]] = []
        if self._outputs == [self.program.loss] and _compares_logits(workload.program):
            self._compared = references(_loss_of(self.program))[:2]
        read = {reference for node in self._nodes for reference in references(node)}
        self.reads = batch_reads(self._nodes)
        self._places = _Places()
        self.running: dict[str, Tensor] = {}
        self.expert_loads: dict[str, Tensor] = {}
        self._hold_buffers(workload, {name for kind, name in read if kind == "buffer"}, first_op, end_op)
        self._key, self._again = _EVALUATION, False
        self._perform_fixed_calls()
        self._batch_places = [self._places.of("batch", name) for name in ("inputs", "labels")]
        self._input_places = [self._places.of("node", name) for name in self._inputs]
        self._output_places = [self._places.of("node", name) for name in self._outputs]
        dtypes = {node.name: DTYPES[node.dtype or "float32"] for node in self.program.nodes}
        self._input_dtypes = [dtypes[name] for name in self._inputs]
        self._steps = {training: self._make_steps(training=training) for training in (True, False)}

    # -- building ---------------------------------------------------------------------------------

    def _hold_buffers(self, workload: Workload, read: set[str], first_op: int, end_op: int) -> None:
        moving = {b.name for b in running_buffers(workload) if first_op <= b.op < end_op}
        for name, buffer in self.program.buffers.items():
            if name in read or name in moving:
                tensor = _tensor_of(buffer, self.device)
                self._places.values[self._places.of("buffer", name)] = tensor
                if name in moving:
                    self.running[name] = tensor

    def _perform_fixed_calls(self) -> None:
        """Free calls that read neither weight, batch nor chance give the same every time."""
        moving = {("batch", "inputs"), ("batch", "labels"), *(("node", name) for name in self._inputs)}
        moving |= {("buffer", name) for name, buffer in self.program.buffers.items() if buffer.running}
        kept = []
        for node in self._nodes:
            step = self._member_steps.get(node.name)
            has_gradient = node.op is not None or (step is not None and step.has_gradient)
            if has_gradient or node.call in RANDOM_CALLS or moving & set(references(node)):
                moving.add(("node", node.name))
                kept.append(node)
                continue
            with torch.no_grad():
                function, pick = self._bound(node, training=True)
                self._places.values[self._places.of("node", node.name)] = function(*pick(self._places.values))
        self._nodes = kept

    def _make_steps(self, *, training: bool) -> list[_Step]:
        steps = []
        for node, dead in zip(self._nodes, self._dead_after(), strict=True):
            steps.append((*self._bound(node, training=training), self._places.of("node", node.name), dead))
        return steps

    def _dead_after(self) -> list[tuple[int, ...]]:
        """By call, the places that no later call reads; outputs and what was there before all calls stay."""
        kept = {name for kind, name in self._compared if kind == "node"} | set(self._outputs)
        mortal = ({node.name for node in self._nodes} | set(self._inputs)) - kept
        last: dict[str, int] = {}
        for i, node in enumerate(self._nodes):
            last |= {name: i for kind, name in (*references(node), ("node", node.name)) if kind == "node"}
        dead: list[list[int]] = [[] for _ in self._nodes]
        for name in mortal & last.keys():
            dead[last[name]].append(self._places.of("node", name))
        return [tuple(places) for places in dead]

    def _bound(self, node: Node, *, training: bool) -> tuple[Callable[..., Any], _Pick]:
        """The function of a call, and how it takes its arguments from the values."""
        if node.name in self._member_steps:
            step, feeds_products = self._member_steps[node.name], self._feeds_products(node.name)
            done = MemberStep(step, self.group, self._regathering, feeds_products=feeds_products)
            return done, self._places.pick(list(node.args))
        call = aten_call(node.call)
        given = _by_name(node, call)
        if not training:
            _evaluate(node.call, given)
        if "device" in call.keyword and self.device.type != "cpu" and "self" not in given:
            given["device"] = self.device
        names = [name for name, _ in call.positional]
        count = max((i + 1 for i, name in enumerate(names) if name in given), default=0)
        arguments = [given.pop(name, default) for name, default in call.positional[:count]]
        function = call.function
        if given:
            function = partial(function, **{name: _decoded(value) for name, value in given.items()})
        everything = dict(zip(names, arguments, strict=False))
        rows = self._rows_of(arguments)
        if any(rows):
            function = self._on_rows(function, node, rows)
        elif node.call in STATISTICS_CALLS:
            mean = everything.get("running_mean")
            if training and everything.get(EVALUATED_WITH[node.call][0]) and isinstance(mean, dict):
                function = self._counted(function, str(mean.get("buffer")))
        elif training and node.call == "index.Tensor":
            function = self._tallied(function, node, everything)
        elif node.call in RANDOM_CALLS and _draws(node.call, everything):
            function = self._drawn(function, node, everything)
        if node.op is None and self._casts:
            function = self._in_float32(function)
        elif node.call in CASTING_CALLS and self._casts and not any(rows):
            function = self._lowering(function)
        return function, self._places.pick(arguments)

    def _feeds_products(self, name: str) -> bool:
        """Whether only products that autocast lowers read a value, or another shape of it."""
        return name not in self._outputs and all(
            node.call in CASTING_CALLS or (node.call in RESHAPES and self._feeds_products(node.name))
            for node in self._users.get(name, ())
        )

    @cached_property
    def _users(self) -> dict[str, list[Node]]:
        """By value, the calls that read it."""
        found: dict[str, list[Node]] = {}
        for node in self._nodes:
            for kind, name in references(node):
                if kind == "node":
                    found.setdefault(name, []).append(node)
        return found

    def _rows_of(self, arguments: list[Any]) -> list[Any]:
        """By argument, how many rows a matrix has of which this member holds some, else None; lists as they are."""
        found: list[Any] = []
        for argument in arguments:
            name = argument.get("parameter") if isinstance(argument, dict) else None
            if isinstance(argument, list | tuple):
                inner = self._rows_of(list(argument))
                found.append(inner if any(inner) else None)
            elif name is not None and self.group.divides_samples:
                shape = self.program.parameters[name].shape
                found.append(shape[0] if has_own_rows(name, shape) else None)
            else:
                found.append(None)
        return found

    def _on_rows(self, function: Callable[..., Any], node: Node, rows: list[Any]) -> Callable[..., Any]:
        """A call that reads matrices of which this member holds rows."""
        group = self.group

        def gathered(arguments: Sequence[Any], counts: list[Any]) -> list[Any]:
            return [
                x if count is None
                else gathered(x, count) if isinstance(count, list)
                else sharded_weights.whole(x, count, group)
                for x, count in zip(arguments, counts, strict=True)
            ]  # fmt: skip

        def call(*arguments: Any) -> Any:
            if node.call == "linear.default" and rows[0] is None and arguments[0].ndim > 1:
                x, weight_rC, *bias = arguments
                return sharded_weights.linear(x, weight_rC, bias[0] if bias else None, rows[1], group)
            if node.call == "embedding.default" and rows[0] is not None and not any(arguments[3:]):
                weight_rC, index, *padding = arguments
                return sharded_weights.rows(index, weight_rC, rows[0], group, *padding[:1])
            return function(*gathered(arguments, rows))

        return call

    def _tallied(self, function: Callable[..., Any], node: Node, everything: dict[str, Any]) -> Callable[..., Any]:
        """A call that takes experts' weights by their numbers: counts how often each is taken, an op once."""
        weight, indices = everything.get("self"), everything.get("indices")
        if node.op is None or not (isinstance(weight, dict) and "parameter" in weight) or node.op in self.expert_loads:
            return function
        shape = self.program.parameters[weight["parameter"]].shape
        if len(shape) != EXPERTS_NDIM or not isinstance(indices, list | tuple) or len(indices) != 1:
            return function
        load_E = self.expert_loads[node.op] = torch.zeros(shape[0], dtype=torch.int64, device=self.device)

        def call(weights: Tensor, numbers: list[Tensor]) -> Any:
            if not self._again:
                taken = numbers[0].reshape(-1)
                load_E.scatter_add_(0, taken, torch.ones_like(taken))
            return function(weights, numbers)

        return call

    def _in_float32(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Free calls are computed as they are written, outside of autocast."""

        def call(*arguments: Any) -> Any:
            with torch.autocast(self.device.type, enabled=False):
                return function(*arguments)

        return call

    @staticmethod
    def _lowering(function: Callable[..., Any]) -> Callable[..., Any]:
        """A call whose weights autocast would cast takes the copies that all micro-batches share."""

        def call(*arguments: Any) -> Any:
            return function(*(lowered(a) if isinstance(a, nn.Parameter) else a for a in arguments))

        return call

    def _drawn(self, function: Callable[..., Any], node: Node, everything: dict[str, Any]) -> Callable[..., Any]:
        is_divided = self.program.has_samples(node.name) if self.group.divides_samples else node.name in self._layouts
        if self.group.degree > 1 and is_divided and _dropped(everything):
            return self._drawn_for_all(node, everything)
        # Numbers are drawn in the order of memory, and what has crossed a boundary lies in another order than before.
        # Attention draws for its scores, which are its own.
        in_order = node.call != "scaled_dot_product_attention.default"

        def call(*arguments: Any) -> Any:
            if in_order:
                arguments = tuple(a.contiguous() if isinstance(a, Tensor) else a for a in arguments)
            with drawing(self._key, node.name, self.device):
                return function(*arguments)

        return call

    def _drawn_for_all(self, node: Node, everything: dict[str, Any]) -> Callable[..., Any]:
        """Dropout, of values or of attention's scores: drawn for all members, of which this one takes its part."""
        share, layout = _dropped(everything), self._layouts.get(node.name)
        axis, blocks = (layout.axis, layout.blocks) if layout else (0, (self._whole_shapes[node.name][0],))
        ranges = block_ranges(blocks, self.group.index, self.group.degree)

        def own_draws(x: Tensor) -> Tensor:
            with drawing(self._key, node.name, self.device):
                whole = x.new_empty((*x.shape[:axis], sum(blocks), *x.shape[axis + 1 :]))
                kept = whole.bernoulli_(1.0 - share)
            return taken(kept, axis, ranges).div(1.0 - share)

        def drop(x: Tensor, *_: Any) -> Tensor:
            return x * own_draws(x)

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, *_: Any) -> Tensor:
            if node.kwargs.get("enable_gqa"):
                k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
            scores = q @ k.transpose(-1, -2) * (node.kwargs.get("scale") or q.shape[-1] ** -0.5)
            if everything.get("is_causal"):
                is_later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
                scores = scores.masked_fill(is_later, -math.inf)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
            return (torch.ops.aten._safe_softmax(scores, -1) * own_draws(scores)) @ v

        return drop if node.call == "dropout.default" else attend

    def _counted(self, function: Callable[..., Any], running_mean: str) -> Callable[..., Any]:
        """Batch norm that moves its statistics the first time only."""
        counter = self.running.get(running_mean.removesuffix("running_mean") + "num_batches_tracked")

        def call(x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any) -> Any:
            if self._again:
                mean = variance = None
            elif counter is not None:
                counter.add_(1)
            return function(x, weight, bias, mean, variance, *rest)

        return call

    # -- weights ----------------------------------------------------------------------------------

    def bind(self, weight: ModelWeight, parameter: nn.Parameter) -> None:
        """Puts a weight where calls read it."""
        self._places.values[self._places.of("parameter", weight.name)] = parameter

    def fill(self, weight: ModelWeight, values: Tensor, seed: int) -> None:
        """Initial values by the calls that filled the weight when the model was built."""
        fill_program_weight(values, weight.name, self.program.parameters[weight.name], seed)

    # -- computing --------------------------------------------------------------------------------

    def compute(
        self,
        inputs: list[Tensor],
        batch: Sequence[Tensor | None] | None,
        key: RngKey | None,
        *,
        again: bool = False,
        segments: Sequence[tuple[int, int]] = (),
    ) -> list[Tensor]:
        """Performs the calls."""
        env = self._env(inputs, batch)
        self._key, self._again = key or _EVALUATION, again
        with self._regathering.saving() if self._member_steps else nullcontext():
            for function, pick, place, dead in self._steps[key is not None]:
                env[place] = function(*pick(env))
                for i in dead:
                    env[i] = None
        found = [env[place] for place in self._output_places]
        if key is None and self._compared:
            logits, targets = (env[self._places.of(*reference)] for reference in self._compared)
            found.append(self._count_correct(logits, targets))
        if self._outputs == [self.program.loss]:
            found = [sharded_weights.over_samples(number, self.group) for number in found]
        return found

    def _count_correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        step = self._member_steps.get(self.program.loss)
        if step is None:
            return logits.argmax(dim=1).eq(targets).sum()
        first_word = part_range(step.blocks[0], self.group.index, self.group.degree)[0]
        return count_correct(logits, targets, first_word, self.group)

    def value_of(self, node: str, batch: Sequence[Tensor | None]) -> Tensor:
        """What a call of a whole model gives in evaluation."""
        env, wanted, self._key = self._env([], batch), self._places.of("node", node), _EVALUATION
        for function, pick, place, _ in self._steps[False]:
            env[place] = function(*pick(env))
            if place == wanted:
                break
        value: Tensor = env[wanted]
        return value

    def _env(self, inputs: list[Tensor], batch: Sequence[Tensor | None] | None) -> Env:
        env = self._places.values.copy()
        for place, x, dtype in zip(self._input_places, inputs, self._input_dtypes, strict=True):
            env[place] = x if x.dtype == dtype else x.to(dtype)
        if batch is not None:
            for place, tensor in zip(self._batch_places, batch[:2], strict=True):
                env[place] = None if tensor is None else self.group.own_samples(tensor)
        return env


def _tensor_of(buffer: Buffer, device: torch.device) -> Tensor:
    values = torch.tensor(buffer.values, dtype=DTYPES[buffer.dtype], device=device)
    if buffer.run_lengths is not None:
        values = values.repeat_interleave(torch.tensor(buffer.run_lengths, device=device))
    return values.view(buffer.shape)


def _loss_of(program: Program) -> Node:
    return next(node for node in program.nodes if node.name == program.loss)


def _compares_logits(program: Program) -> bool:
    """Whether the loss is a cross-entropy of logits [N, C] and targets [N]."""
    loss = _loss_of(program)
    found = references(loss)[:2]
    is_known = loss.call == "cross_entropy_loss.default" and len(found) == 2 and found[0][0] == "node"
    return is_known and len(program.shape_of.get(found[0][1], ())) == 2


def _by_name(node: Node, call: AtenCall) -> dict[str, Any]:
    names = [name for name, _ in call.positional]
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def _evaluate(name: str, given: dict[str, Any]) -> None:
    """Sets what the call does otherwise in evaluation; without running statistics those of the batch stay."""
    if name not in EVALUATED_WITH:
        return
    argument, value = EVALUATED_WITH[name]
    if argument in given and not (name in STATISTICS_CALLS and given.get("running_mean") is None):
        given[argument] = value


def _dropped(arguments: dict[str, Any]) -> float:
    """The share that dropout, of values or of attention's scores, makes 0."""
    return float(arguments.get("p", arguments.get("dropout_p", 0.0)))


def _draws(name: str, arguments: dict[str, Any]) -> bool:
    """Whether a random call draws with these arguments."""
    switch = EVALUATED_WITH.get(name, ("", True))[0]
    shares = [arguments[share] for share in ("p", "dropout", "dropout_p") if share in arguments]
    return bool(arguments.get(switch, not switch or switch == "dropout_p")) and all(shares or [True])
