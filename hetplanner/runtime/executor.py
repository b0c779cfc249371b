"""The executor: performs one rank's actions of the plan's schedule, in order, on real tensors.

Nothing here decides anything: what to do, with whom and in which order comes from `make_schedule(plan)`, which
the simulator times too. A SEND returns at once (gloo's own threads transfer), a RECV waits for its message.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hetplanner.codecs.torch_codecs import AtPositions, TensorCodec, TopK, tensor_codec
from hetplanner.errors import RunError
from hetplanner.plan.action import Action, Kind, Schedule
from hetplanner.plan.model import Plan, Role
from hetplanner.plan.reducers.groups import ReductionGroup, reduction_groups
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.adamw import FlatAdamW
from hetplanner.runtime.build import StageModel, boundary_shape
from hetplanner.runtime.data import Batches
from hetplanner.runtime.models import DrawKey
from hetplanner.runtime.reduce import GroupReducer
from hetplanner.runtime.stage import StageRunner
from hetplanner.runtime.telemetry import Telemetry, keeps_spans
from hetplanner.runtime.transport import Expected, MessageKey, Topic, Transport
from hetplanner.schedule.order import make_schedule

TOPIC = {"activation": Topic.ACTIVATION, "gradient": Topic.GRADIENT}


@dataclass
class StepStats:
    """What one rank did in one step; `loss_sum` in nats over `num_tokens` tokens, on the last stage only.

    Attributes:
        grad_norm: global, before clipping; known where it is clipped by.
        grad_square: this rank's share of its square, which costs no exchange: whoever reads all ranks adds them up.
        in_flight: most micro-batches that were forward and not yet backward.
        held: most messages whose buffers were kept.
    """

    start_s: float = 0.0
    end_s: float = 0.0
    loss_sum: float | None = None
    num_tokens: int = 0
    boundary_bytes: int = 0
    reduce_bytes: int = 0
    grad_norm: float | None = None
    grad_square: float = 0.0
    in_flight: int = 0
    held: int = 0


class Executor:
    """One rank at work.

    Attributes:
        actions: this rank's, in order.
        reducers: by group, those this rank is a member of.
        completed_steps: steps whose update is in the weights.
        updating: held while the weights change; whoever takes it from another thread freezes them.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        config: TrainConfig,
        model: StageModel,
        transport: Transport,
        batches: Batches | None,
        telemetry: Telemetry,
    ) -> None:
        self.plan, self.rank, self.config, self.model = plan, rank, config, model
        self.transport, self.batches, self.telemetry = transport, batches, telemetry
        self.stage, self.replica = plan.place_of_rank[rank]
        self.runner = StageRunner(model, recompute=plan.stages[self.stage].recompute or plan.problem.workload.recompute)
        self.optimizer = FlatAdamW(
            model.flat,
            model.flat_grad,
            [w for w in model.named_weights().values() if w.ndim >= 2],
            betas=config.betas,
            weight_decay=config.weight_decay,
        )
        self.completed_steps, self.updating = 0, threading.Lock()
        self.stats, self._step = StepStats(), 0
        self._in_flight = 0
        self._recording = True  # False in validation and in steps that leave no spans
        self._tensors: dict[tuple[Topic, int], Tensor] = {}
        # By boundary and micro-batch: where top-k's activations were, for the gradients that follow.
        self._positions: dict[tuple[int, int], Tensor] = {}
        self._losses: list[Tensor] = []
        schedule = make_schedule(plan)
        self.actions = actions = schedule.of_rank(rank)
        self._proofs = proofs_of_delivery(schedule, rank)
        self.reducers = self._make_reducers()
        self._expected = [m for a in actions for m in self._messages_of(a)]
        self._program = [self._bound(a) for a in actions]
        ahead = [a for a in actions if a.role == "activation" or a.kind is Kind.FORWARD]
        self._expected_ahead = [m for a in ahead for m in self._messages_of(a)]
        self._program_ahead = [self._bound(a, training=False) for a in ahead]

    def _make_reducers(self) -> dict[int, GroupReducer]:
        groups = reduction_groups(self.plan)
        return {
            g: GroupReducer(group, (g, len(groups)), self.rank, self._bucket(group), self.transport)
            for g, group in enumerate(groups)
            if self.rank in group.ranks
        }

    def _bucket(self, group: ReductionGroup) -> Tensor:
        if not group.tied:
            return self.model.flat_grad[: self.model.own_end]
        first, end = self.model.tied[self.plan.problem.workload.graph.ops[group.ops[0]].name]
        return self.model.flat_grad[first:end]

    def _messages_of(self, action: Action) -> list[Expected]:
        """What a rank takes from the network in an action."""
        if action.kind is Kind.RECV:
            num_bytes = self.plan.boundary_bytes(action.stage, action.peer, self.rank, role_of(action))
            return [Expected(action.peer, TOPIC[action.role], action.micro_batch, num_bytes)]
        if action.kind is Kind.REDUCE:
            return self.reducers[action.group].expected
        if action.kind is Kind.STEP and self.config.clip_norm is not None:
            return [Expected(r, Topic.NORM, 0, 8) for r in range(len(self.plan.ranks)) if r != self.rank]
        return []

    # -- steps ------------------------------------------------------------------------------------

    def run_step(self, step: int) -> StepStats:
        """Performs one optimiser step. Raises RunError when the loss is no number, RuntimeError when a peer is lost."""
        self._step, self._recording = step, keeps_spans(step)
        self.stats = stats = StepStats(start_s=time.monotonic())
        self.transport.expect(self._expected)
        for act in self._program:
            act()
        self.transport.end_step()
        if self.model.is_last:
            self._take_loss()
        stats.end_s = time.monotonic()
        return stats

    def run_validation(self) -> tuple[float, int]:
        """Loss sum and tokens of one global batch of the validation split, forward only."""
        self._step, self._recording = 0, False
        self.transport.expect(self._expected_ahead)
        for act in self._program_ahead:
            act()
        self.transport.end_step()
        losses = torch.stack(self._losses) if self._losses else torch.zeros(0)
        self._losses = []
        return float(losses.sum()), self._tokens(len(losses))

    def _tokens(self, num_micro_batches: int) -> int:
        workload = self.plan.problem.workload
        return num_micro_batches * workload.micro_batch * workload.seq_len

    def _take_loss(self) -> None:
        self.stats.num_tokens = self._tokens(len(self._losses))
        self.stats.loss_sum = float(torch.stack(self._losses).sum())
        self._losses = []
        if not math.isfinite(self.stats.loss_sum):
            raise RunError(
                f"rank {self.rank}: the loss of step {self._step} is {self.stats.loss_sum}; lower the learning rate"
            )

    # -- actions ----------------------------------------------------------------------------------

    def _bound(self, action: Action, *, training: bool = True) -> Callable[[], None]:
        """The action as a call without arguments; everything the plan fixes is looked up once."""
        match action.kind:
            case Kind.FORWARD:
                return self._forward(action.micro_batch, training=training)
            case Kind.BACKWARD:
                return self._backward(action.micro_batch)
            case Kind.SEND:
                return self._send(action, training=training)
            case Kind.RECV:
                return self._receive(action, training=training)
            case Kind.REDUCE:
                return self._reduce(self.reducers[action.group])
            case Kind.STEP:
                return self._update

    def _span(
        self, kind: Kind, micro_batch: int, start: float, end: float, num_bytes: int = 0, transfer: Action | None = None
    ) -> None:
        if not self._recording:
            return
        stage, peer, role = (transfer.stage, transfer.peer, transfer.role) if transfer else (self.stage, -1, "")
        depth = None
        if kind is Kind.FORWARD or kind is Kind.BACKWARD:
            depth = self._in_flight, self.transport.num_posted, self.transport.num_held
        self.telemetry.span(
            kind.value, self._step, micro_batch, start, end,
            num_bytes=num_bytes, peer=peer, stage=stage, role=role, depth=depth,
        )  # fmt: skip

    def _note_depth(self, change: int) -> None:
        """A micro-batch went forward (+1) or backward (-1)."""
        self._in_flight += change
        self.stats.in_flight = max(self.stats.in_flight, self._in_flight)
        self.stats.held = max(self.stats.held, self.transport.num_held)

    def _forward(self, m: int, *, training: bool) -> Callable[[], None]:
        def act() -> None:
            start = time.monotonic()
            tokens, labels = self.draw(m, training=training)
            x = tokens if tokens is not None else self._tensors.pop((Topic.ACTIVATION, m))
            if training:
                y = self.runner.forward(m, x, labels, DrawKey(self.config.seed, self._step, m))
            else:
                y = self.runner.evaluate(x, labels)
            if self.model.is_last:
                self._losses.append(y)
            else:
                self._tensors[Topic.ACTIVATION, m] = y
            if training:
                self._note_depth(+1)
            self._span(Kind.FORWARD, m, start, time.monotonic())

        return act

    def draw(self, m: int, *, training: bool = True) -> tuple[Tensor | None, Tensor | None]:
        """Tokens on the first stage, labels on the last."""
        if not (self.model.is_first or self.model.is_last):
            return None, None
        assert self.batches is not None
        tokens, labels = self.batches.draw(self._step, m, "train" if training else "validation")
        return tokens if self.model.is_first else None, labels if self.model.is_last else None

    def _backward(self, m: int) -> Callable[[], None]:
        def act() -> None:
            start = time.monotonic()
            gradient = self.runner.backward(m, self._tensors.pop((Topic.GRADIENT, m), None))
            if gradient is not None:
                self._tensors[Topic.GRADIENT, m] = gradient
            self._note_depth(-1)
            self._span(Kind.BACKWARD, m, start, time.monotonic())

        return act

    def _send(self, action: Action, *, training: bool) -> Callable[[], None]:
        topic, peer, role = TOPIC[action.role], action.peer, role_of(action)
        codec = tensor_codec(self.plan.codec_between(self.rank, peer, role))
        num_bytes = self.plan.boundary_bytes(action.stage, self.rank, peer, role)
        key = (topic, action.micro_batch)

        def act() -> None:
            message = self.transport.buffer(num_bytes)
            self._codec_now(codec, action).encode(self._tensors.pop(key), self.transport.payload(message))
            if training:
                self._note_positions(codec, action)
            sent = self.transport.send(message, peer, topic, action.micro_batch)
            self.stats.boundary_bytes += num_bytes
            self._span(Kind.SEND, action.micro_batch, sent.start_s, sent.arrival_s, num_bytes, action)

        return act

    def _receive(self, action: Action, *, training: bool) -> Callable[[], None]:
        topic, peer = TOPIC[action.role], action.peer
        codec = tensor_codec(self.plan.codec_between(peer, self.rank, role_of(action)))
        shape = boundary_shape(self.plan.problem.workload, self.plan.stages[action.stage].end_op - 1)
        (message,) = self._messages_of(action)
        proven = self._proofs.get((peer, topic, action.micro_batch), []) if training else []
        elements = self.plan.boundary_elements(action.stage)

        def act() -> None:
            start = time.monotonic()
            data = self.transport.receive(message)
            self.transport.release(proven)
            tensor = self._codec_now(codec, action).decode(data, elements)
            self._tensors[topic, action.micro_batch] = tensor.view(shape)
            if training:
                self._note_positions(codec, action)
            self._span(Kind.RECV, action.micro_batch, start, time.monotonic(), message.num_bytes, action)

        return act

    def _codec_now(self, codec: TensorCodec, action: Action) -> TensorCodec:
        """Top-k's gradients travel at the positions that the activations came with."""
        if isinstance(codec, TopK) and action.role == "gradient":
            return AtPositions(self._positions.pop((action.stage, action.micro_batch)))
        return codec

    def _note_positions(self, codec: TensorCodec, action: Action) -> None:
        if isinstance(codec, TopK) and action.role == "activation":
            self._positions[action.stage, action.micro_batch] = codec.position_M

    def _reduce(self, reducer: GroupReducer) -> Callable[[], None]:
        def act() -> None:
            start = time.monotonic()
            sent = reducer.reduce()
            self.stats.reduce_bytes += sent
            self._span(Kind.REDUCE, -1, start, time.monotonic(), sent)

        return act

    def _update(self) -> None:
        start = time.monotonic()
        self.average_gradients()
        self.stats.grad_square = self._squared_norm()
        if self.config.clip_norm is not None:
            self._clip(self.config.clip_norm)
        with self.updating:
            self.optimizer.step(self.config.learning_rate_at(self._step))
            self.completed_steps = self._step + 1
        self.model.flat_grad.zero_()
        self._span(Kind.STEP, -1, start, time.monotonic())

    def average_gradients(self) -> None:
        """Sums over tokens become means: boundaries and reductions carried sums, one division is left to do."""
        self.model.flat_grad.mul_(1.0 / self.plan.problem.workload.tokens_per_step)

    def _clip(self, limit: float) -> None:
        """Scales the gradient down to a global norm of `limit`; stages and tied weights count once."""
        squares = {self.rank: self.stats.grad_square}
        for peer in range(len(self.plan.ranks)):
            if peer != self.rank:
                message = self.transport.buffer(8)
                self.transport.payload(message).view(torch.float64).fill_(squares[self.rank])
                self.transport.send(message, peer, Topic.NORM, 0)
        for peer in range(len(self.plan.ranks)):
            if peer != self.rank:
                data = self.transport.receive(Expected(peer, Topic.NORM, 0, 8))
                squares[peer] = float(data.view(torch.float64))
        norm = math.sqrt(sum(squares[r] for r in sorted(squares)))
        self.stats.grad_norm = norm
        if norm > limit:
            self.model.flat_grad.mul_(limit / (norm + 1e-6))

    def _squared_norm(self) -> float:
        """This rank's share: replica 0 speaks for its stage, a tied weight's owner for the weight."""
        if self.replica != 0:
            return 0.0
        graph = self.plan.problem.workload.graph
        owned = [self.model.flat_grad[: self.model.own_end]]
        own_names = {op.name for op in graph.ops[self.model.first_op : self.model.end_op]}
        owned += [self.model.flat_grad[a:b] for name, (a, b) in self.model.tied.items() if name in own_names]
        # One pass over the gradient; the optimiser makes about seven.
        return sum(float(torch.linalg.vector_norm(part)) ** 2 for part in owned)


def proofs_of_delivery(schedule: Schedule, rank: int) -> dict[MessageKey, list[MessageKey]]:
    """Which of a rank's messages have certainly arrived once it takes one from the same peer.

    What the peer took before it sent is delivered. So a rank keeps no more buffers than the plan has micro-batches
    in flight, however many the step has.
    """
    proofs: dict[MessageKey, list[MessageKey]] = {}
    taken: dict[int, list[MessageKey]] = {}
    for action in schedule.actions:
        if action.peer != rank:
            continue
        key = (action.rank, TOPIC[action.role], action.micro_batch)
        if action.kind is Kind.RECV:
            taken.setdefault(action.rank, []).append(key)
        else:
            proofs[key] = taken.pop(action.rank, [])
    return proofs


def role_of(action: Action) -> Role:
    """Role of a SEND or RECV."""
    return "activation" if action.role == "activation" else "gradient"
