"""The torch half of a peer: one stage's chunk, what is under way, and contributions until a commit.

All methods run on one thread, the peer's own, in the order in which its machine wanted them. A token's gradient is kept
by itself until the step is committed, so that exactly those that the journal names are folded. Until then it is in the
host's memory, as a GPU seldom has room for all gradients of a step.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from hetplanner.codecs.torch_codecs import tensor_codec
from hetplanner.codecs.torch_dense import TensorCodec
from hetplanner.elastic.protocol.identity import Stamp, Token, Version
from hetplanner.elastic.protocol.peer_events import CallKey, FoldDone
from hetplanner.errors import InvalidInput
from hetplanner.runtime.comm.wire import CPU
from hetplanner.runtime.model.build import Batch, StageModel
from hetplanner.runtime.model.precision import boundary_codec
from hetplanner.runtime.model.pretrained import load_pretrained
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.rng import RngKey
from hetplanner.swarm.peer.state import StageState, state_sizes
from hetplanner.swarm.peer.tensor_checks import check_sizes
from hetplanner.swarm.peer.updates import DelayedUpdate, LocalUpdate, StageUpdate, Stepped
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.weights.adapters import common_digest, initial_weights

log = logging.getLogger(__name__)

FORWARD_SHARE = 1 / 3
"""Of a micro-batch's time; only where a speed is emulated."""

CLIP_EPS = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""

T = TypeVar("T")


@dataclass
class _Call:
    """A micro-batch under way: what came with it, and what it gave."""

    number: int
    labels: memoryview
    loss_sum: float | None = None
    gradient: Tensor | None = None


@dataclass
class Sum:
    """Gradients of listed contributions, their number and their losses.

    At the end of a round of local steps also: a change of weights times the micro-batches behind it, and their number.

    Attributes:
        stepped: the optimizer after the local step that has been tried with it.
    """

    gradient: Tensor
    count: int
    loss_sum: float
    stepped: Stepped | None = None


@dataclass
class _Kept:
    """What an attempt is committed with.

    Attributes:
        total: gradients of the whole stage; with local steps this peer's own.
        change: mean of the stage, at the end of a round of local steps.
    """

    total: Sum
    change: Tensor | None = None


class StageEngine:
    """One peer's computations.

    Args:
        spec: of the run.
        device: what computes.
        speeds: micro-batches per second that are emulated by waiting: one for all stages, or one for each; None: as
            fast as it goes.
        folders: of the model that the swarm begins with, and of adapters, on this machine. The coordinator, which may
            be another user's, names none.

    Attributes:
        stage: that is held; -1: none.
        version: of the weights; None: there are none yet.
    """

    def __init__(
        self,
        spec: SwarmSpec,
        device: torch.device,
        speeds: Sequence[float] | None = None,
        folders: Sequence[str] = (),
    ) -> None:
        self.spec, self.device, self.folders = spec, device, folders
        self.speeds = _in_every_stage(speeds, spec.num_stages) if speeds is not None else None
        self.stage = -1
        self.version: Version | None = None
        self._calls: dict[CallKey, _Call] = {}
        self._contributions: dict[Token, tuple[Tensor, float]] = {}
        self._sums: dict[Stamp, _Kept] = {}
        self._numbers = 0
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="optimizer")
        dtype = spec.workload.dtype
        self._activation = boundary_codec(spec.activation_codec, dtype)
        self._gradient = boundary_codec(spec.gradient_codec, dtype)

    # State.

    def build(self, stage: int, model: StageModel | None = None) -> int:
        """Makes a stage: of a model, or to be loaded. What there was before is gone. Returns its number of weights."""
        spec = self.spec
        self.drop()
        self._sums.clear()
        self.version = None
        model = model or self._model(stage, None)
        self.stage, self.model = stage, model
        recompute = spec.recompute[stage] or spec.workload.recompute
        members = model.group.degree if model.group.divides_samples else 0
        self._runner = StageRunner(model, recompute=recompute, in_flight=spec.in_flight[stage], members=members)
        self._update = self._make_update(model)
        return model.flat.numel()

    def _model(self, stage: int, seed: int | None) -> StageModel:
        return StageModel(self.spec.workload, *self.spec.ops_of(stage), seed, self.device)

    def _initial(self, stage: int) -> StageModel:
        """A stage with weights from the seed, and of this peer's folders. Raises InvalidInput: they do not fit."""
        spec, folders = self.spec, self.folders
        model = self._model(stage, spec.train.seed)
        if spec.init_digest is None:
            return model
        if not folders:
            raise InvalidInput("init_from: this peer was given no model folder; the first peers of a stage need one")
        weights = initial_weights(folders[0], folders[1] if len(folders) > 1 else None, spec.workload)
        if common_digest(weights) != spec.init_digest:
            raise InvalidInput(f"init_from: {folders[0]}: is another model here than on the coordinator's host")
        read = sum(load_pretrained([model], each) for each in weights)
        log.info("stage %d begins with %d bytes of weights of %s", stage, read, folders[0])
        return model

    def _make_update(self, model: StageModel) -> StageUpdate:
        if self.spec.delayed_updates:
            return DelayedUpdate(model, self.spec.train, self._beside)
        if self.spec.is_local:
            return LocalUpdate(model, self.spec.train, self.spec.outer)
        return StageUpdate(model, self.spec.train)

    def begin(self, stage: int, version: Version) -> None:
        """The initial state of a stage. Raises InvalidInput: the model folder does not fit, see `check_weights`."""
        self.build(stage, self._initial(stage))
        self.version = version

    def check_state(self, state: StageState) -> None:
        """Refuses a state that is not of the stage that was built. Raises InvalidInput."""
        if state.stage != self.stage:
            raise InvalidInput(f"state: is of stage {state.stage}, not {self.stage}")
        for name, size in state_sizes(self.spec, self.stage).items():
            if (found := state.tensors[name].numel()) != size:
                raise InvalidInput(f"state of stage {state.stage}: {found} numbers, not {size}")

    def load(self, state: StageState, version: Version | None = None) -> None:
        """Fills a stage that was built with a state that `check_state` takes.

        It counts as `version`, or as what it says.
        """
        for name, target in self._update.tensors().items():
            self._take_part(name, target, state.tensors.get(name))
        self._update.num_steps = state.num_steps
        self.version = version or state.version

    def state(self) -> StageState | None:
        """A copy of the state as it is between two computations; None: there is none."""
        if self.version is None:
            return None
        copies = {name: self._copy_of_whole(name, t) for name, t in self._update.tensors().items()}
        return StageState(self.stage, self.version, self._update.num_steps, copies)

    def digest(self) -> str:
        """SHA-256 of all weights and moments: equal on all replicas of a stage at a version.

        With local steps: of what the last outer step left.
        """
        found = hashlib.sha256()
        for name, tensor in self._update.common().items():
            found.update(self._copy_of_whole(name, tensor).numpy().data)
        return found.hexdigest()

    def failure(self) -> str | None:
        """Why this peer cannot go on; None: it can. Called while another thread computes."""
        return None

    # Micro-batches.

    def forward(self, key: CallKey, micro_batch: int, step: int, parts: Sequence[memoryview]) -> tuple[bytes, ...]:
        """The activation of a call: what goes on to the next stage.

        Args:
            key: of the call.
            micro_batch, step: what random draws depend on.
            parts: as `SwarmSpec.work_bytes` says.

        Raises:
            InvalidInput: what came is of a wrong size, no number, or no token of the model.
        """
        spec = self.spec
        check_sizes(parts, spec.work_bytes(self.stage), "work")
        x = self._own_part(self._decoded(parts[0], self.stage), self.stage) if self.stage else None
        inputs = self._tokens(parts[0], "inputs") if not self.stage else torch.empty(0)
        labels = self._tokens(parts[1], "labels") if self.model.is_last else torch.empty(0)
        batch = Batch(inputs, labels) if self.model.needs_batch else None
        self._numbers += 1
        number, draw = self._numbers, RngKey(spec.train.seed, step, micro_batch)
        output = self._paced(FORWARD_SHARE, lambda: self._runner.forward(number, x, batch, draw))
        self._calls[key] = _Call(number, parts[1], float(output) if self.model.is_last else None)
        if self.model.is_last:
            return ()
        return self._encoded(self._activation, self._whole_of(output, self.stage + 1)), bytes(parts[1])

    def backward(self, key: CallKey, token: Token | None, parts: Sequence[memoryview]) -> tuple[bytes, ...] | None:
        """The gradient of a call's input; the weights' is kept as `token`, or not at all.

        Args:
            key: of a call that went forward.
            token: the contribution's name.
            parts: what the next stage answered; on the last stage none.

        Returns:
            What goes back to the caller; None: some gradient is no number, and nothing was kept.

        Raises:
            InvalidInput: what came is of a wrong size or no number.
            KeyError: the call has been dropped meanwhile.
        """
        call = self._calls[key]
        gradient = None
        if not self.model.is_last:
            check_sizes(parts, self.spec.gradient_bytes(self.stage + 1), "gradient")
            whole = self._decoded(parts[0], self.stage + 1, is_gradient=True) if parts else None
            gradient = None if whole is None else self._own_part(whole, self.stage + 1, is_gradient=True)
        del self._calls[key]
        back = self._paced(1 - FORWARD_SHARE, lambda: self._runner.backward(call.number, gradient))
        own = self.model.flat_grad
        is_finite = self._all_agree(all(bool(torch.isfinite(t).all()) for t in (own, back) if t is not None))
        if is_finite and token is not None:
            self._contributions[token] = (own.to(CPU, copy=True), call.loss_sum or 0.0)
        own.zero_()
        if not is_finite:
            return None
        if back is None:
            return ()
        return (self._encoded(self._gradient, self._whole_of(back, self.stage, is_gradient=True)),)

    def forget(self, key: CallKey) -> None:
        """A call is over, whether it came back or not."""
        if (call := self._calls.pop(key, None)) is not None:
            self._runner.forget(call.number)

    def warm_up(self) -> None:
        """Loads compiled codecs, and what torch imports in its first backward, before the swarm needs this peer."""
        spec = self.spec
        torch.zeros(1, requires_grad=True).mul(2.0).backward(torch.ones(1))
        x = torch.zeros(512)
        for codec in {spec.activation_codec, spec.gradient_codec, spec.averaging_codec}:
            out = torch.empty(codec.wire_bytes(512, 4), dtype=torch.uint8)
            tensor_codec(codec).encode(x, out)
            tensor_codec(codec).decode(out, 512)

    def measure(self) -> float:
        """Micro-batches per second of this device, in the middle stage with random numbers."""
        stage, spec = self.spec.num_stages // 2, self.spec
        self.build(stage, self._model(stage, spec.train.seed))
        self.version = Version(0, 0)
        x = torch.randn(max(1, spec.boundary_elements(stage)), device=self.device)
        x = self._own_part(x, stage) if stage else x
        tokens = torch.zeros(spec.workload.micro_batch, spec.workload.seq_len, dtype=torch.int64, device=self.device)
        seconds = []
        for number in range(5):
            began_s = time.monotonic()
            key = RngKey(spec.train.seed, 0, number)
            output = self._runner.forward(number, x if stage else None, Batch(tokens, tokens), key)
            self._runner.backward(number, None if self.model.is_last else torch.ones_like(output))
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # kernels are only begun above
            seconds.append(time.monotonic() - began_s)
        self.version = None
        return 1.0 / max(min(seconds), 1e-6)

    def drop(self) -> None:
        """Forgets all contributions and calls."""
        self._contributions.clear()
        for call in self._calls.values():
            self._runner.forget(call.number)
        self._calls.clear()

    # The step.

    def fold(self, tokens: Iterable[Token]) -> Sum:
        """The sum of these contributions, in an order that does not depend on when they came."""
        total = Sum(torch.zeros_like(self.model.flat_grad), 0, 0.0)
        for token in sorted(tokens):
            gradient, loss_sum = self._contributions[token]
            total.gradient.add_(gradient.to(self.device))
            total.count += 1
            total.loss_sum += loss_sum
        return total

    def offer(self, folded: Sum) -> Sum | None:
        """What is added up over the stage: the sum, or at the end of a round of local steps this peer's change.

        Returns:
            None inside a round: nothing.
        """
        update, settings = self._update, self.spec.settings
        if not isinstance(update, LocalUpdate):
            return self._sum_of_whole(folded)
        assert self.version is not None
        if not settings.ends_round(self.version.step):
            return None
        change, folded.stepped = update.offer(folded.gradient, folded.count, *self._own_step(folded))
        return self._sum_of_whole(Sum(change, update.samples + folded.count, 0.0))

    def keep_sum(self, attempt: Stamp, total: Sum, own: Sum | None = None) -> FoldDone:
        """Keeps what an attempt is committed with until it is decided, and says what the coordinator is to know.

        Args:
            attempt: undecided.
            total: what was offered, over the whole stage; inside a round of local steps `own`.
            own: what this peer folded; with local steps.
        """
        is_last = self.stage == self.spec.num_stages - 1
        if not self.spec.is_local:
            grad_square = self._grad_square(total)
            self._sums[attempt] = _Kept(self._sum_of_part(total))
            return FoldDone(attempt, total.count, total.loss_sum if is_last else None, grad_square)
        assert own is not None
        loss_sum, is_inside = own.loss_sum if is_last else None, total is own
        self._sums[attempt] = _Kept(own, None if is_inside else self._sum_of_part(total).gradient.div_(total.count))
        return FoldDone(attempt, own.count, loss_sum, samples=None if is_inside else total.count)

    def _grad_square(self, total: Sum) -> float | None:
        """See Reduced."""
        if self.spec.train.clip_norm is None:
            return None
        own_end, tied = self.tied_ranges()
        parts = [total.gradient[:own_end]]
        for owner, (first, end) in tied.items():
            if self.spec.tied_stages[owner][0] == self.stage:
                parts.append(total.gradient[first:end])
        norms = [float(torch.linalg.vector_norm(part)) / self.spec.workload.tokens_per_step for part in parts]
        return sum(norm**2 for norm in norms)

    def drop_sum(self, attempt: Stamp) -> None:
        """The attempt is aborted."""
        self._sums.pop(attempt, None)

    def apply(self, attempt: Stamp, version: Version, grad_norm: float | None = None) -> None:
        """Steps the optimizer with the mean gradient of an attempt, clipped; the state is of `version` then.

        Args:
            attempt: whose sum was kept.
            version: of the weights from now on.
            grad_norm: of the mean gradient of all stages; needed where the spec clips.
        """
        kept, limit, update = self._sums.pop(attempt), self.spec.train.clip_norm, self._update
        assert self.version is not None
        if isinstance(update, LocalUpdate):
            if kept.change is not None and kept.total.stepped is not None:
                update.end_round(kept.change, kept.total.stepped)
            else:
                update.step_alone(kept.total.gradient, kept.total.count, *self._own_step(kept.total))
        else:
            factor = 1.0 / self.spec.workload.tokens_per_step
            if limit is not None:
                assert grad_norm is not None
                factor *= min(1.0, limit / (grad_norm + CLIP_EPS))
            update.apply(kept.total.gradient, factor, self.spec.train.learning_rate_at(self.version.step))
        self.version = version
        self._sums.clear()

    def _own_step(self, folded: Sum) -> tuple[float, float]:
        """Of a local step: what makes a mean of this peer's sum, and the learning rate."""
        assert self.version is not None
        tokens = self.spec.workload.tokens_per_step // self.spec.settings.micro_batches
        return 1.0 / (tokens * max(1, folded.count)), self.spec.train.learning_rate_at(self.version.step)

    # Parts of a stage: this engine has all of it. A member of a group has others, see `group.member_engine`.

    def tied_ranges(self) -> tuple[int, dict[str, tuple[int, int]]]:
        """Of the whole stage: see `hetplanner.runtime.model.layout.tied_ranges`."""
        return self.model.own_end, self.model.tied

    def _own_part(self, whole: Tensor, stage: int, *, is_gradient: bool = False) -> Tensor:
        """What this device computes of the flat tensor in front of a stage."""
        return whole

    def _whole_of(self, part: Tensor, stage: int, *, is_gradient: bool = False) -> Tensor:
        """The flat tensor in front of a stage, of which this device has computed a part."""
        return part

    def _all_agree(self, flag: bool) -> bool:
        """Whether it is so on all devices of this peer."""
        return flag

    def _copy_of_whole(self, name: str, own: Tensor) -> Tensor:
        """A tensor of the state, of which this device has `own`: a copy in host memory."""
        return own.detach().cpu().clone()

    def _take_part(self, name: str, own: Tensor, whole: Tensor | None) -> None:
        """Sets this device's part of a tensor of the state."""
        assert whole is not None
        own.copy_(whole)

    def _sum_of_whole(self, part: Sum) -> Sum:
        """A sum of the whole stage, of which this device has a part."""
        return part

    def _sum_of_part(self, whole: Sum) -> Sum:
        """This device's part of a sum of the whole stage."""
        return whole

    # Helpers.

    def _decoded(self, part: memoryview, stage: int, *, is_gradient: bool = False) -> Tensor:
        codec = self._gradient if is_gradient else self._activation
        data = torch.frombuffer(bytearray(part), dtype=torch.uint8).to(self.device)
        x = codec.decode(data, self.spec.boundary_elements(stage))
        if not bool(torch.isfinite(x).all()):
            name = "gradient" if is_gradient else "activation"
            raise InvalidInput(f"{name} in front of stage {stage}: holds numbers that are not finite")
        return x

    def _encoded(self, codec: TensorCodec, x: Tensor) -> bytes:
        spec = self.spec.gradient_codec if codec is self._gradient else self.spec.activation_codec
        size = spec.wire_bytes(x.numel(), self.spec.workload.dtype_bytes)
        out = torch.empty(size, dtype=torch.uint8, device=self.device)
        codec.encode(x, out)
        return out.cpu().numpy().tobytes()

    def _tokens(self, part: memoryview, name: str) -> Tensor:
        workload, vocab = self.spec.workload, self.spec.vocab
        ids = torch.frombuffer(bytearray(part), dtype=torch.int32)
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= vocab:
            raise InvalidInput(f"{name}: tokens must be from 0 to {vocab - 1}, got {least}, {most}")
        return ids.long().view(workload.micro_batch, workload.seq_len).to(self.device)

    def _paced(self, share: float, compute: Callable[[], T]) -> T:
        """Computes, and where speeds are emulated takes at least its share of a micro-batch's time in this stage."""
        began_s = time.monotonic()
        result = compute()
        if self.speeds is not None:
            time.sleep(max(0.0, began_s + share / self.speeds[self.stage] - time.monotonic()))
        return result


def _in_every_stage(speeds: Sequence[float], stages: int) -> tuple[float, ...]:
    """A speed for each stage. Raises InvalidInput: there is neither one nor one for each."""
    if len(speeds) not in (1, stages):
        raise InvalidInput(f"speed: must be one number, or one for each of {stages} stages, got {len(speeds)}")
    return tuple(speeds) * (stages if len(speeds) == 1 else 1)
