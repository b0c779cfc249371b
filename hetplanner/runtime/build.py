"""From ops to a trainable stage: modules whose weights and gradients are views into one flat buffer.

One flat buffer makes the reduction of gradients a matter of slices. Its layout, agreed by all replicas of a
stage, is: the stage's own weights in op order, then every weight that is tied across stages.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hetplanner.plan.train import check_trainable
from hetplanner.runtime.initial import initialise
from hetplanner.runtime.models import MODULES, DrawKey, Embedding, Head, Loss, OpModule
from hetplanner.workload.model import Op
from hetplanner.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of a stage: where it lives in the flat buffer and what it is called in a saved model."""

    name: str
    op_index: int
    first: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """First element behind it."""
        return self.first + torch.Size(self.shape).numel()


class StageModel(nn.Module):
    """The ops of one stage. `seed` None leaves the weights unset, to be loaded.

    Attributes:
        weights: every weight once, in the flat buffer's order.
        flat, flat_grad: values and gradients of all weights, float32, 1-D.
        own_end: elements in front of it are the stage's own; what follows is tied across stages.
        tied: owner's name -> element range of a weight that is tied across stages.
    """

    def __init__(self, workload: Workload, first_op: int, end_op: int, seed: int | None) -> None:
        super().__init__()
        check_trainable(workload)
        assert workload.transformer is not None
        self.workload, self.config = workload, workload.transformer
        self.first_op, self.end_op = first_op, end_op
        self.ops: tuple[Op, ...] = workload.graph.ops[first_op:end_op]
        self.op_modules = nn.ModuleList(MODULES[op.kind](self.config, first_op + i) for i, op in enumerate(self.ops))
        self.tied: dict[str, tuple[int, int]] = {}
        self._lay_out(seed)

    # -- weights ----------------------------------------------------------------------------------

    def _lay_out(self, seed: int | None) -> None:
        own, crossing = self._slots()
        weights: list[Weight] = []
        end = 0
        for name, op_index, module, local in (*own, *crossing):
            shape = tuple(module.get_parameter(local).shape)
            weights.append(Weight(name, op_index, end, shape))
            end = weights[-1].end
            if len(weights) == len(own):
                self.own_end = end
        if not own:
            self.own_end = 0
        for weight in weights[len(own) :]:
            self.tied[self._owner_of(weight.op_index)] = (weight.first, weight.end)
        self.weights = tuple(weights)
        self.flat, self.flat_grad = torch.empty(end), torch.zeros(end)
        for weight, (_, _, module, local) in zip(weights, (*own, *crossing), strict=True):
            self._bind(weight, module, local)
        self._share_tied_inside()
        if seed is not None:
            self._initialise(seed)

    def _slots(self) -> tuple[list[tuple[str, int, OpModule, str]], list[tuple[str, int, OpModule, str]]]:
        """(name, op, module, local name) of own weights and of those tied across stages; shared ones once."""
        own, crossing = [], []
        for op, module in self._pairs():
            index = module.op_index
            for local, _ in module.named_parameters():
                slot = (f"{op.name}.{local}", index, module, local)
                if self._is_tied(op, local) is None:
                    own.append(slot)
                elif self._crosses(index):
                    if op.tied is None or not self._holds(op.tied):
                        crossing.append(slot)
                elif op.tied is None:
                    own.append(slot)
        return own, crossing

    def _pairs(self) -> Iterator[tuple[Op, OpModule]]:
        for op, module in zip(self.ops, self.op_modules, strict=True):
            assert isinstance(module, OpModule)
            yield op, module

    def _is_tied(self, op: Op, local: str) -> str | None:
        """Owner's name if this weight is shared with another op."""
        if op.kind == "head" and local == "weight":
            return op.tied
        if op.kind == "embedding" and local == "tokens.weight" and op.name in self.workload.graph.tied_groups:
            return op.name
        return None

    def _owner_of(self, op_index: int) -> str:
        op = self.workload.graph.ops[op_index]
        return op.tied or op.name

    def _crosses(self, op_index: int) -> bool:
        members = self.workload.graph.tied_groups[self._owner_of(op_index)]
        return not all(self.first_op <= i < self.end_op for i in members)

    def _holds(self, op_name: str) -> bool:
        return any(op.name == op_name for op in self.ops)

    def _bind(self, weight: Weight, module: OpModule, local: str) -> None:
        holder, _, leaf = local.rpartition(".")
        parameter = nn.Parameter(self.flat[weight.first : weight.end].view(weight.shape))
        parameter.grad = self.flat_grad[weight.first : weight.end].view(weight.shape)
        setattr(module.get_submodule(holder) if holder else module, leaf, parameter)

    def _share_tied_inside(self) -> None:
        by_name = {op.name: module for op, module in self._pairs()}
        for op, module in self._pairs():
            if op.tied in by_name and isinstance(module, Head):
                owner = by_name[op.tied]
                assert isinstance(owner, Embedding)
                module.weight = owner.tokens.weight

    def _initialise(self, seed: int) -> None:
        for op, module in self._pairs():
            if op.tied is None:
                initialise(dict(module.named_parameters()), self.config, seed, module.op_index)
            elif not self._holds(op.tied):
                owner = self.workload.graph.tied_groups[op.tied][0]
                initialise(dict(module.named_parameters()), self.config, seed, owner)

    def named_weights(self) -> dict[str, Tensor]:
        """Views of all weights by the name they have in a saved model."""
        return {w.name: self.flat[w.first : w.end].view(w.shape) for w in self.weights}

    def saved_weights(self) -> dict[str, Tensor]:
        """The weights that this stage saves, in the saved model's order: all but replicas of another stage's."""
        held = self.named_weights()
        return {name: held[name] for name, _, _ in saved_layout(self.workload) if name in held}

    # -- computing --------------------------------------------------------------------------------

    @property
    def is_first(self) -> bool:
        """Whether the stage reads tokens."""
        return self.first_op == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage ends in the loss."""
        return self.end_op == len(self.workload.graph.ops)

    @property
    def needs_batch(self) -> bool:
        """Whether it reads a micro-batch's inputs or labels."""
        return self.is_first or self.is_last

    def forward(self, x: Tensor, labels_BT: Tensor | None = None, key: DrawKey | None = None) -> Tensor:
        """Runs the ops: tokens or the boundary's tensor in; the next boundary's tensor or the loss sum out."""
        for module in self.op_modules:
            x = module(x, labels_BT) if isinstance(module, Loss) else module(x, key)
        return x

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """[B, T, V] of a whole model, for sampling."""
        x = tokens_BT
        for module in self.op_modules:
            if not isinstance(module, Loss):
                x = module(x)
        return x


def saved_layout(workload: Workload) -> list[tuple[str, tuple[int, ...], int]]:
    """(name, shape, op) of every weight of the whole model, a tied one once, in op order; nothing is allocated."""
    assert workload.transformer is not None
    layout = []
    for index, op in enumerate(workload.graph.ops):
        for local, weight in MODULES[op.kind](workload.transformer, index).named_parameters():
            if op.tied is None or op.kind != "head":
                layout.append((f"{op.name}.{local}", tuple(weight.shape), index))
    return layout


def boundary_shape(workload: Workload, last_op: int) -> tuple[int, ...]:
    """Shape of one micro-batch's tensor behind an op."""
    assert workload.transformer is not None
    config = workload.transformer
    width = config.vocab if workload.graph.ops[last_op].kind == "head" else config.hidden
    return (workload.micro_batch, workload.seq_len, width)
