"""Optimisers of one stage: those of `torch.optim`, on states that lie in flat buffers.

The functions that do the work in `torch.optim` are called directly. Constructing its classes imports the compiler (1 s
of CPU in every rank), and their states are made at the first step, one by one. The numbers are the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from hetplanner.plan.train import TrainConfig, check_packages
from hetplanner.runtime.model.layout import Weight, stage_weights
from hetplanner.workload.optimizers import MOMENTUM, SLICE_ELEMENTS, inner_ops, is_codes, state_parts, state_shapes
from hetplanner.workload.workload import Workload

ADAM_EPS = 1e-8
MUON_EPS, MUON_COEFFICIENTS, MUON_ITERATIONS = 1e-7, (3.4445, -4.7750, 2.0315), 5
ADAFACTOR_DECAY, ADAFACTOR_EPS, ADAFACTOR_CLIP = -0.8, 1e-3, 1.0
"""Defaults of `torch.optim`. Muon's step sizes are those that fit AdamW's learning rate (`match_rms_adamw`)."""


Range = tuple[int, int]
"""First and end element in the flat buffer of a stage's weights."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is kept of one weight in one part: elements `first` to `end` of the part's buffer, and their shape there."""

    first: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """First element behind it."""
        return self.first + prod(self.shape)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Where a stage's optimiser keeps what.

    Attributes:
        sizes: elements of every part's buffer, in the order of a checkpoint; parts that are empty are left out.
        pieces: by the name of a weight, by part.
    """

    sizes: dict[str, int]
    pieces: dict[str, dict[str, Piece]]

    @staticmethod
    def of(workload: Workload, first_op: int, end_op: int, weights: Sequence[Weight] | None = None) -> "StateLayout":
        """The layout of ops `first_op` to `end_op`; of a member of a group, of its parts of their weights."""
        inner, name = inner_ops(workload.graph), workload.optimizer
        sizes = dict.fromkeys(state_parts(name), 0)
        pieces: dict[str, dict[str, Piece]] = {}
        for i, (weight, whole) in enumerate(stage_weights(workload, first_op, end_op)):
            shape = (whole if weights is None else weights[i]).shape
            shapes = state_shapes(name, shape, inner=inner.issuperset(weight.users))
            pieces[weight.name] = {part: Piece(sizes[part], shape) for part, shape in shapes.items()}
            for part, piece in pieces[weight.name].items():
                sizes[part] = piece.end
        return StateLayout({part: size for part, size in sizes.items() if size}, pieces)


@dataclass(frozen=True, slots=True)
class _Held:
    """A weight, or a part of it, with its gradient and its states: views.

    Attributes:
        decays: whether weight decay is for it.
    """

    weight: Tensor
    grad: Tensor
    states: dict[str, Tensor]
    decays: bool


def parts_within(ranges: Sequence[Range], first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The parts of ranges that lie in `first` to `end`: first and end element, and how many of all ranges' elements
    stand in front.
    """
    before = 0
    for begin, stop in ranges:
        inside = max(begin, first), min(stop, end)
        if inside[1] > inside[0]:
            yield *inside, before + inside[0] - begin
        before += stop - begin


def _slices(held: Sequence[_Held]) -> list[_Held]:
    """The same weights flat and in slices, for optimizers that look at each element alone: temporaries are small."""
    return [
        _Held(weight, grad, dict(zip(one.states, states, strict=True)), one.decays)
        for one in held
        for weight, grad, *states in zip(
            *(part.view(-1).split(SLICE_ELEMENTS) for part in (one.weight, one.grad, *one.states.values())), strict=True
        )
    ]


class StageOptimizer:
    """Steps the weights of a stage.

    Args:
        workload: whose optimizer and weights they are.
        first_op, end_op: the stage.
        config: betas, momentum and weight decay. Norms, biases and other vectors do not decay.
        flat, flat_grad: values and gradients of all weights, float32, 1-D, as `StageModel` lays them out.
        weights: of a member of a group, its parts.
        zeros: makes the buffer of a part of the states.
        shard: of the flat buffer, what is stepped; None: everything. For optimizers that step each element by itself.

    Raises:
        InvalidInput: a package that the optimizer needs is not installed.

    Attributes:
        layout: of the states.
        states: by part, 1-D; float32, codes uint8. With a shard those of its ranges one after the other.
        num_steps: steps so far.
        shard: see above.
    """

    def __init__(
        self,
        workload: Workload,
        first_op: int,
        end_op: int,
        config: TrainConfig,
        flat: Tensor,
        flat_grad: Tensor,
        weights: Sequence[Weight] | None = None,
        zeros: Callable[[int], Tensor] | None = None,
        shard: Sequence[Range] | None = None,
    ) -> None:
        check_packages(workload)
        self.name, self.config, self.shard = workload.optimizer, config, shard
        self.layout = StateLayout.of(workload, first_op, end_op, weights)
        self._weights = weights or [weight for _, weight in stage_weights(workload, first_op, end_op)]
        self._flat, self._flat_grad, self.num_steps = flat.detach(), flat_grad, 0
        self.states = {
            part: zeros(size)
            if zeros is not None
            else torch.zeros(size, dtype=torch.uint8 if is_codes(part) else torch.float32, device=flat.device)
            for part, size in self._sizes().items()
        }
        self._coded = _CodedAdam(flat.device) if self.name == "adamw8bit" else None
        self._view()

    def _sizes(self) -> dict[str, int]:
        if self.shard is None:
            return self.layout.sizes
        return dict.fromkeys(self.layout.sizes, sum(end - first for first, end in self.shard))

    def _view(self) -> None:
        if self.shard is not None:
            self._held = [
                _Held(self._flat[first:end], self._flat_grad[first:end], states, len(weight.shape) >= 2)
                for weight in self._weights
                for first, end, states in self._stepped(weight.first, weight.end)
            ]
            return
        self._held = []
        for weight in self._weights:
            pieces = self.layout.pieces[weight.name]
            states = {part: self.states[part][p.first : p.end].view(p.shape) for part, p in pieces.items()}
            cut = slice(weight.first, weight.end)
            values, grad = (flat[cut].view(weight.shape) for flat in (self._flat, self._flat_grad))
            self._held.append(_Held(values, grad, states, len(weight.shape) >= 2))

    def _stepped(self, first: int, end: int) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
        """The parts of a range of the flat buffer that are in the shard: first and end element, and their states."""
        for begin, stop, place in parts_within(self.shard or (), first, end):
            yield begin, stop, {part: kept[place : place + stop - begin] for part, kept in self.states.items()}

    def step_by(self, flat_grad: Tensor, learning_rate: float) -> None:
        """One update with the gradients of another buffer."""
        own, self._flat_grad = self._flat_grad, flat_grad
        self._view()
        self.step(learning_rate)
        self._flat_grad = own
        self._view()

    def take_states(self, states: Mapping[str, Tensor]) -> None:
        """Goes over to other buffers, of the same sizes."""
        self.states = dict(states)
        self._view()

    @torch.no_grad()
    def step_into_gradients(self, learning_rate: float | None) -> None:
        """One update whose new weights take the place of their gradients; the weights stay as they are.

        Without a learning rate the step is left out: the old weights are the new ones.
        """
        self.num_steps += learning_rate is not None
        for one in _slices(self._held):
            new = one.weight.clone()
            if learning_rate is not None:
                decay = self.config.weight_decay if one.decays else 0.0
                self._rule_of(one)([replace(one, weight=new)], learning_rate, decay)
            one.grad.copy_(new)

    def take_shard(self, weight: Weight, part: str, values: Tensor) -> None:
        """Of a state of a whole weight (1-D), takes what belongs to the shard."""
        for first, end, states in self._stepped(weight.first, weight.end):
            states[part].copy_(values[first - weight.first : end - weight.first])

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update with the gradients as they stand."""
        self.num_steps += 1
        for decays in (True, False):
            alike: dict[Callable[[Sequence[_Held], float, float], None], list[_Held]] = {}
            for one in self._held:
                if one.decays == decays:
                    alike.setdefault(self._rule_of(one), []).append(one)
            for rule, held in alike.items():
                rule(held, learning_rate, self.config.weight_decay if decays else 0.0)

    def _rule_of(self, one: _Held) -> Callable[[Sequence[_Held], float, float], None]:
        """What steps a weight. Muon and 8-bit states leave to AdamW what has the states of AdamW."""
        if self.name == "sgd":
            return self._step_sgd
        if self.name == "adafactor":
            return self._step_adafactor
        if "square" in one.states:
            return self._step_adam
        return self._step_muon if self._coded is None else self._step_coded

    def _step_coded(self, held: Sequence[_Held], learning_rate: float, decay: float) -> None:
        assert self._coded is not None
        self._coded.step(held, self.config.betas, self.num_steps, learning_rate, decay)

    def _counts(self, held: Sequence[_Held], device: torch.device | None = None) -> list[Tensor]:
        """Steps before this one, for every weight; torch adds one to each."""
        return list(torch.full((len(held),), float(self.num_steps - 1), device=device).unbind())

    def _momentum(self) -> float:
        return MOMENTUM[self.name] if self.config.momentum is None else self.config.momentum

    def _step_adam(self, held: Sequence[_Held], learning_rate: float, decay: float) -> None:
        from torch.optim.adamw import adamw

        held = _slices(held)
        fused = self._flat.is_cuda  # one pass, and no temporaries; on the CPU it rounds otherwise than torch's default
        adamw(
            [one.weight for one in held],
            [one.grad for one in held],
            [one.states["mean"] for one in held],
            [one.states["square"] for one in held],
            [],
            self._counts(held, self._flat.device if fused else None),
            fused=fused,
            foreach=False,
            amsgrad=False,
            beta1=self.config.betas[0],
            beta2=self.config.betas[1],
            lr=learning_rate,
            weight_decay=decay,
            eps=ADAM_EPS,
            maximize=False,
        )

    def _step_sgd(self, held: Sequence[_Held], learning_rate: float, decay: float) -> None:
        from torch.optim.sgd import sgd

        held = _slices(held)
        momentum = self._momentum()
        sgd(
            [one.weight for one in held],
            [one.grad for one in held],
            [one.states["mean"] if momentum else None for one in held],
            fused=self._flat.is_cuda,
            foreach=False,
            weight_decay=decay,
            momentum=momentum,
            lr=learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _step_adafactor(self, held: Sequence[_Held], learning_rate: float, decay: float) -> None:
        from torch.optim._adafactor import adafactor  # no public name; `torch.optim.Adafactor` calls it

        adafactor(
            [one.weight for one in held],
            [one.grad for one in held],
            [one.states.get("rows") for one in held],
            [one.states.get("columns") for one in held],
            [one.states.get("square") for one in held],
            self._counts(held),
            foreach=False,
            d=ADAFACTOR_CLIP,
            lr=learning_rate,
            beta2_decay=ADAFACTOR_DECAY,
            weight_decay=decay,
            eps1=torch.finfo(torch.float32).eps,
            eps2=ADAFACTOR_EPS,
            maximize=False,
        )

    def _step_muon(self, held: Sequence[_Held], learning_rate: float, decay: float) -> None:
        from torch.optim._muon import muon  # no public name; `torch.optim.Muon` calls it

        muon(
            [one.weight for one in held],
            [one.grad for one in held],
            [one.states["mean"] for one in held],
            lr=learning_rate,
            weight_decay=decay,
            momentum=self._momentum(),
            nesterov=True,
            ns_coefficients=MUON_COEFFICIENTS,
            ns_steps=MUON_ITERATIONS,
            eps=MUON_EPS,
            adjust_lr_fn="match_rms_adamw",
            has_complex=False,
        )


class _CodedAdam:
    """AdamW whose moments are 8-bit codes, by bitsandbytes."""

    def __init__(self, device: torch.device) -> None:
        from bitsandbytes.functional import create_dynamic_map

        self._signed = create_dynamic_map(signed=True).to(device)
        self._unsigned = create_dynamic_map(signed=False).to(device)

    def step(
        self, held: Sequence[_Held], betas: tuple[float, float], num_steps: int, learning_rate: float, decay: float
    ) -> None:
        """One update; `num_steps` counts it."""
        from bitsandbytes.functional import optimizer_update_8bit_blockwise

        for one in held:
            optimizer_update_8bit_blockwise(
                "adam",
                one.grad,
                one.weight,
                one.states["mean_codes"],
                one.states["square_codes"],
                *betas,
                0.0,
                0.0,
                ADAM_EPS,
                num_steps,
                learning_rate,
                self._signed,
                self._unsigned,
                one.states["mean_scales"],
                one.states["square_scales"],
                weight_decay=decay,
            )
