"""What each call computes and keeps, measured on fake tensors: torch's own FLOP counter and autograd's own saving.

The calls run once, one by one, on tensors without storage. A counted call (matrix products, convolutions, attention)
has the FLOPs of `torch.utils.flop_counter`; any other that computes has one FLOP an element of its largest tensor, and
in backward one an element of its inputs' gradients. What autograd saves is seen by its hooks: weights and buffers do
not count, they are there anyway; a storage that several calls save counts for the first.

Source: torch.utils.flop_counter; torch.autograd.graph.saved_tensors_hooks.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from hetplanner.capture.calls import Call, Ref, with_refs
from hetplanner.capture.export import Exported
from hetplanner.workload.calls import CASTING_CALLS

_MOVES = frozenset(
    ("embedding", "cat", "stack", "index", "index_select", "gather", "clone", "contiguous", "copy", "constant_pad_nd",
     "pad", "roll", "flip", "repeat", "lift_fresh_copy", "to", "_to_copy", "arange", "zeros", "ones", "full", "empty")
)  # fmt: skip
"""Calls that only move or make values: no FLOPs forward."""
_GRADIENTS_INSIDE = frozenset(("cross_entropy_loss.default",))
"""Calls whose backward makes as large a gradient on its way: that of the logarithms of probabilities."""


def _cpu_attention(query: Any, key: Any, value: Any, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _cpu_attention_backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


_cpu_attention._get_raw = True  # type: ignore[attr-defined]
_cpu_attention_backward._get_raw = True  # type: ignore[attr-defined]
CPU_ATTENTION: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward,
}
"""Formulas for FlopCounterMode's `custom_mapping`: it knows fused attention on GPUs only; the CPU's is the same."""


@dataclass(slots=True)
class CallCost:
    """Of one call and one micro-batch.

    Attributes:
        kept_bytes: what autograd saves.
        working_bytes: gradients of the call's outputs and inputs, and of what is between, without those of weights.
    """

    forward_flops: int = 0
    backward_flops: int = 0
    kept_bytes: int = 0
    working_bytes: int = 0


def measure(exported: Exported, *, lowered: bool = False) -> dict[str, CallCost]:
    """Cost of every call by name; `lowered`: under autocast in bfloat16."""
    with exported.mode, FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        return _Meter(exported, counter, lowered=lowered).run()


class _Meter:
    def __init__(self, exported: Exported, counter: FlopCounterMode, *, lowered: bool) -> None:
        self.exported, self.counter, self.lowered = exported, counter, lowered
        fake = exported.mode.from_tensor
        self.values: dict[Ref, Any] = {
            Ref("batch", "inputs"): fake(exported.inputs),
            Ref("batch", "labels"): fake(exported.labels),
            **{Ref("parameter", name): value.detach() for name, value in exported.parameters.items()},
            **{Ref("buffer", name): fake(value) for name, value in exported.buffers.items()},
        }
        self.seen = {_storage(v) for ref, v in self.values.items() if ref.kind in ("parameter", "buffer")}
        self.alive: list[Tensor] = []  # saved storages stay alive, so that their addresses stay theirs
        self.copies: dict[Ref, Tensor] = {}  # of weights, which all micro-batches share

    def run(self) -> dict[str, CallCost]:
        return {call.name: self._measured(call) for call in self.exported.calls}

    def _measured(self, call: Call) -> CallCost:
        cost, leaves = CallCost(), {ref: self._leaf(ref, call) for ref in call.reads()}
        args, kwargs = with_refs((call.args, call.kwargs), leaves.__getitem__)
        before = self.counter.get_total_flops()
        is_lowered = self.lowered and call.weighted
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t: self._keep(t, cost), lambda t: t),
            torch.autocast("cpu", torch.bfloat16, enabled=is_lowered),
        ):
            result = call.func(*args, **kwargs)
        outputs = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)]
        counted = self.counter.get_total_flops() - before
        cost.forward_flops = counted or _elementwise(call, [*outputs, *_tensors(leaves)])
        weights = {id(value) for ref, value in leaves.items() if ref.kind == "parameter"}
        inputs = [v for v in _tensors(leaves) if v.requires_grad]
        self._backward(call, cost, outputs, inputs, bool(counted), weights)
        self.values[Ref("node", call.name)] = tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, result)
        return cost

    def _leaf(self, ref: Ref, call: Call) -> Any:
        weighted = call.weighted and (ref.kind == "parameter" or ref.name in self._weighted)

        def leaf(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.detach().requires_grad_(bool(weighted and value.is_floating_point()))

        if self.lowered and ref.kind == "parameter" and call.title in CASTING_CALLS:
            return leaf(self._copy(ref))
        return tree_map(leaf, self.values[ref])

    def _copy(self, ref: Ref) -> Tensor:
        """A weight in 16 bits; it counts with the weights."""
        if ref not in self.copies:
            self.copies[ref] = self.values[ref].to(torch.bfloat16)
            self.seen.add(_storage(self.copies[ref]))
        return self.copies[ref]

    @property
    def _weighted(self) -> set[str]:
        if not hasattr(self, "_weighted_names"):
            self._weighted_names = {call.name for call in self.exported.calls if call.weighted}
        return self._weighted_names

    def _keep(self, tensor: Tensor, cost: CallCost) -> Tensor:
        key = _storage(tensor)
        if key not in self.seen:
            self.seen.add(key)
            self.alive.append(tensor.detach())
            cost.kept_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def _backward(
        self, call: Call, cost: CallCost, outputs: Any, inputs: list[Tensor], counted: bool, weights: set[int]
    ) -> None:
        ends = [t for t in outputs if t.requires_grad]
        if not ends or not inputs:
            return
        before = self.counter.get_total_flops()
        gradients = torch.autograd.grad(ends, inputs, [torch.empty_like(t) for t in ends], allow_unused=True)
        cost.backward_flops = self.counter.get_total_flops() - before
        if not call.is_view:
            rows = zip(inputs, gradients, strict=True)
            made = [gradient for leaf, gradient in rows if gradient is not None and id(leaf) not in weights]
            inside = made if call.title in _GRADIENTS_INSIDE else []
            cost.working_bytes = sum(t.numel() * t.element_size() for t in (*ends, *made, *inside))
        if not counted and not call.is_view:
            name = call.title.split(".")[0]
            sizes = [t.numel() for t in ends] if name in _MOVES else [g.numel() for g in gradients if g is not None]
            cost.backward_flops += sum(sizes)


def _tensors(leaves: dict[Ref, Any]) -> list[Tensor]:
    return [t for t in tree_flatten(list(leaves.values()))[0] if isinstance(t, Tensor)]


def _elementwise(call: Call, tensors: list[Tensor]) -> int:
    """One FLOP an element of the largest tensor: reductions read more than they give."""
    if call.is_view or call.func is operator.getitem or call.title.split(".")[0] in _MOVES:
        return 0
    return max((t.numel() for t in tensors if t.is_floating_point()), default=0)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
