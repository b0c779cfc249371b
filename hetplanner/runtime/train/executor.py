"""The executor: performs one rank's actions of the plan's schedule, in order, on real tensors.

Nothing here decides anything: what to do, with whom and in which order comes from `make_schedule(plan)`, which
the simulator times too. A SEND returns at once (gloo's own threads transfer), a RECV waits for its message.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hetplanner.codecs.torch_codecs import AtPositions, TensorCodec, TopK
from hetplanner.data.interface import Split
from hetplanner.data.order import SampleOrder
from hetplanner.errors import RunError
from hetplanner.liveness.heartbeat import Heartbeat
from hetplanner.plan.action import Action, Kind
from hetplanner.plan.model import Plan, Role
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.comm.delta import ChangingEnd, SampleMemory
from hetplanner.runtime.comm.receive_order import TOPIC, message_index, proofs_of_delivery, receive_order, sent_messages
from hetplanner.runtime.comm.reductions import Reductions
from hetplanner.runtime.comm.transport import Expected, Topic, Transport
from hetplanner.runtime.device_group import sharded_weights
from hetplanner.runtime.device_group.group import ALONE, DeviceGroup, Piece
from hetplanner.runtime.device_group.whole_stage import whole_stages
from hetplanner.runtime.measure.device_clock import DeviceClock, Mark
from hetplanner.runtime.measure.telemetry import Telemetry, keeps_spans
from hetplanner.runtime.model.build import Batch
from hetplanner.runtime.model.chunk import Chunk
from hetplanner.runtime.model.layout import own_pieces
from hetplanner.runtime.model.precision import boundary_codec
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import Batches
from hetplanner.runtime.train.update import Update
from hetplanner.schedule.order import make_schedule


@dataclass
class StepStats:
    """What one rank did in one step; `loss_sum` in nats over `num_tokens` tokens, on the last stage only.

    Attributes:
        num_labels: of these tokens, those whose targets count; None for all.
        grad_norm: global, before clipping; known where it is clipped by.
        grad_square: this rank's share of its square, which costs no exchange: a reader of all ranks adds them up.
        in_flight: most micro-batches that were forward and not yet backward.
        held: most messages whose buffers were kept.
        skipped: gradients overflowed somewhere with this `loss_scale` (float16 only), so no rank changed its weights.
    """

    start_s: float = 0.0
    end_s: float = 0.0
    loss_sum: float | None = None
    num_tokens: int = 0
    num_labels: int | None = None
    boundary_bytes: int = 0
    reduce_bytes: int = 0
    grad_norm: float | None = None
    grad_square: float = 0.0
    in_flight: int = 0
    held: int = 0
    loss_scale: float | None = None
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """Of an evaluation, what one rank computes; `loss_sum` in nats over `num_targets`, on the last stage only.

    Attributes:
        num_correct: targets that got the greatest score; None where the model does not tell.
    """

    loss_sum: float = 0.0
    num_targets: int = 0
    num_correct: int | None = None


class Executor:
    """One rank at work.

    Attributes:
        chunks: what the process holds, in stage order: one stage, or several when the plan is interleaved.
        group: the devices that serve as this rank together; only its leader exchanges messages with other ranks.
        wholes: of a group, its stages as a single device has them.
        whole_chunks: the rank's stages whole: `chunks`, or those of `wholes`.
        actions: this rank's, in order.
        heartbeat: is told of every action done.
        reductions: what it adds up and averages with others.
        held_out: for evaluation; None takes the validation split of the data.
        completed_steps: steps whose update is in the weights.
        updating: held while the weights change; another thread that takes it freezes them.
        before_update: called before weights and optimizer states change: a copy of them may be under way.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        config: TrainConfig,
        chunks: tuple[Chunk, ...],
        transport: Transport,
        batches: Batches | None,
        telemetry: Telemetry,
        order: SampleOrder | None = None,
        heartbeat: Heartbeat | None = None,
        group: DeviceGroup = ALONE,
    ) -> None:
        self.plan, self.rank, self.config, self.chunks = plan, rank, config, chunks
        self.group, self.wholes = group, whole_stages(plan, chunks, config, group)
        self.whole_chunks = tuple(whole.chunk for whole in self.wholes) or chunks
        self.transport, self.batches, self.telemetry = transport, batches, telemetry
        self.held_out: Batches | None = None
        self.heartbeat = heartbeat or Heartbeat()
        self._order = order  # of training samples; wanted where a codec has `delta`
        self.completed_steps, self.updating = 0, threading.Lock()
        self.before_update: Callable[[], None] = lambda: None
        self.stats, self._step = StepStats(), 0
        self._in_flight = 0
        self._recording = True  # False in validation and in steps that leave no spans
        self._clock = DeviceClock(transport.device)
        self._late: list[tuple[Mark, Mark, Callable[[float, float], None]]] = []  # spans of a GPU, until the step ends
        self._num_micro_batches = plan.problem.workload.num_micro_batches
        # By topic, boundary and micro-batch: what has arrived or waits to be sent.
        self._tensors: dict[tuple[Topic, int, int], Tensor] = {}
        # By boundary and micro-batch: where top-k's activations were, for the gradients that follow.
        self._positions: dict[tuple[int, int], Tensor] = {}
        # By boundary, sender and receiver: what this rank's end remembers of samples.
        self.memories: dict[tuple[int, int, int], SampleMemory] = {}
        self._losses: list[Tensor] = []
        self._correct: list[Tensor] = []
        schedule = make_schedule(plan)
        self.actions = actions = schedule.of_rank(rank)
        last = len(plan.stages) - 1
        self._scored = [a.micro_batch for a in actions if a.kind is Kind.FORWARD and a.stage == last]
        self._proofs = proofs_of_delivery(schedule, rank, self._num_micro_batches)
        reduces = [action for action in schedule.actions if action.kind is Kind.REDUCE]
        self.reductions = Reductions(plan, rank, self.whole_chunks, transport, reduces)
        self.update = Update(plan, rank, config, chunks, transport, group)
        self._has_stepped = False
        self._sent = sent_messages(schedule.actions, self.reductions.groups, self._num_micro_batches)
        # Between synchronisations replicas that take local steps leave out what they exchange.
        bound = [(action, self._bound(action)) for action in actions]
        self._expected, self._program = {}, {}
        for fragment in {plan.fragment_at(step) for step, _ in plan.kinds_of_step}:
            due = [(action, act) for action, act in bound if self.reductions.is_due(action, fragment)]
            self._expected[fragment] = self._posted([action for action, _ in due])
            self._program[fragment] = [act for _, act in due]
        ahead = [a for a in actions if a.role == "activation" or a.kind is Kind.FORWARD]
        self._expected_ahead = self._posted(ahead)
        self._program_ahead = [self._bound(a, training=False) for a in ahead]

    def chunk_of(self, stage: int) -> Chunk:
        """The rank's chunk of a stage."""
        return next(chunk for chunk in self.chunks if chunk.stage == stage)

    @property
    def has_last_stage(self) -> bool:
        """Whether losses are computed here."""
        return self.chunks[-1].model.is_last

    def _messages_of(self, action: Action) -> list[Expected]:
        """What a rank takes from the network in an action."""
        if not self.group.is_leader:
            return []
        if action.kind is Kind.RECV:
            num_bytes = self.plan.boundary_bytes(action.stage, action.peer, self.rank, role_of(action))
            index = message_index(action, self._num_micro_batches)
            return [Expected(action.peer, TOPIC[action.role], index, num_bytes)]
        if action.kind is Kind.REDUCE:
            return self.reductions.reducers[action.group].expected
        if action.kind is Kind.STEP:
            return self.update.expected
        return []

    def _posted(self, actions: Sequence[Action]) -> list[Expected]:
        """What the rank takes in these actions, in the order in which receives are posted."""
        order: list[Expected] = []
        # Every rank has agreed on the step before it sends what is averaged behind it.
        for behind in (False, True):
            taken = [a for a in actions if self.reductions.follows_step(a) is behind]
            messages = [m for action in taken for m in self._messages_of(action)]
            order += receive_order(messages, lambda peer: self._sent[peer, self.rank])
        return order

    # -- steps ------------------------------------------------------------------------------------

    def run_step(self, step: int) -> StepStats:
        """Performs one optimiser step. Raises RunError when the loss is no number, RuntimeError when a peer is lost."""
        self._step, self._recording = step, keeps_spans(step)
        self.stats = stats = StepStats(start_s=time.monotonic())
        if self.batches is not None and self.batches.packed is not None:
            self.update.targets_per_step = max(1, self.batches.num_labels_of_step(step))
        fragment = self.plan.fragment_at(step)
        self.transport.expect(self._expected[fragment])
        advance = self.heartbeat.advance
        for act in self._program[fragment]:
            act()
            advance()
        self.transport.end_step()
        if self.has_last_stage:
            self._take_loss()
        self._tell_late_spans()
        stats.end_s = time.monotonic()
        return stats

    def meet(self) -> None:
        """Makes replicas equal that are in the middle of their local steps: their mean, without the outer optimizer.

        All ranks must call it.
        """
        # With several fragments some are always on their way.
        if self.reductions.local is None or (
            self.plan.fragments == 1 and self.completed_steps % self.plan.local_steps == 0
        ):
            return
        self.reductions.average_finely()
        self.before_update()
        with self.updating:
            self.reductions.take_mean()

    def run_validation(self, num_batches: int = 1) -> Score:
        """What this rank scores of the first global batches of the validation split, forward only."""
        self._recording, score = False, Score()
        for self._step in range(num_batches):
            self.transport.expect(self._expected_ahead)
            for act in self._program_ahead:
                act()
                self.heartbeat.advance()
            self.transport.end_step()
            score = self._added(score)
        return score

    def _added(self, score: Score) -> Score:
        """With the losses of a global batch, which are taken."""
        if not self._losses:
            return score
        num_labels, num_tokens = self._num_labels(self._step, "validation"), self._tokens(len(self._losses))
        loss_sum, correct = float(torch.stack(self._losses).sum()), self._correct
        self._losses, self._correct = [], []
        return Score(
            score.loss_sum + loss_sum,
            score.num_targets + (num_tokens if num_labels is None else num_labels),
            None if len(correct) < len(self._scored) else (score.num_correct or 0) + int(torch.stack(correct).sum()),
        )

    def _batches_of(self, split: Split) -> Batches | None:
        return self.batches if split == "train" or self.held_out is None else self.held_out

    def _tokens(self, num_micro_batches: int) -> int:
        workload = self.plan.problem.workload
        return num_micro_batches * workload.micro_batch * workload.seq_len

    def _num_labels(self, step: int, split: Split) -> int | None:
        """Targets that count in the micro-batches whose losses this rank computes; None: all do."""
        batches = self._batches_of(split)
        if batches is None or batches.packed is None:
            return None
        return batches.num_labels(step, self._scored, split)

    def _take_loss(self) -> None:
        self.stats.num_tokens = self._tokens(len(self._losses))
        self.stats.num_labels = self._num_labels(self._step, "train")
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
                return self._forward(action, training=training)
            case Kind.BACKWARD:
                return self._backward(action)
            case Kind.SEND:
                return self._send(action, training=training)
            case Kind.RECV:
                return self._receive(action, training=training)
            case Kind.REDUCE:
                return self._reduce(action)
            case Kind.STEP:
                return self._end(action)

    def _span(self, action: Action, start: Mark, end: Mark, num_bytes: int = 0) -> None:
        if not self._recording or not self.group.is_leader:
            return
        depth = None
        if action.kind is Kind.FORWARD or action.kind is Kind.BACKWARD:
            depth = self._in_flight, self.transport.num_posted, self.transport.num_held
        tell = partial(
            self.telemetry.span, action.kind.value, self._step, action.micro_batch,
            num_bytes=num_bytes, peer=action.peer, stage=action.stage, role=action.role, depth=depth,
        )  # fmt: skip
        if isinstance(start, float) and isinstance(end, float):
            tell(start, end)
        else:
            self._late.append((start, end, tell))

    def _tell_late_spans(self) -> None:
        """Waits for a GPU, which is behind the calls, and tells what it did when."""
        if not self._late:
            return
        seconds = self._clock.settled()
        for start, end, tell in self._late:
            tell(seconds(start), seconds(end))
        self._late = []

    def _mark(self) -> Mark:
        """Where the device is now; where no span is told, nothing."""
        return self._clock.mark() if self._recording else 0.0

    def _note_depth(self, change: int) -> None:
        """A micro-batch went forward (+1) or backward (-1) through a chunk."""
        self._in_flight += change
        self.stats.in_flight = max(self.stats.in_flight, self._in_flight)
        self.stats.held = max(self.stats.held, self.transport.num_held)

    def _forward(self, action: Action, *, training: bool) -> Callable[[], None]:
        chunk, m = self.chunk_of(action.stage), action.micro_batch
        source, target = (Topic.ACTIVATION, chunk.stage - 1, m), (Topic.ACTIVATION, chunk.stage, m)

        def act() -> None:
            start = self._mark()
            batch = self.draw(chunk, m, training=training)
            x = None if chunk.model.is_first else self._tensors.pop(source)
            if training:
                y = chunk.runner.forward(m, x, batch, RngKey(self.config.seed, self._step, m))
            elif chunk.model.is_last:
                y, correct = chunk.runner.score(x, batch)
                self._correct += [] if correct is None else [correct]
            else:
                y = chunk.runner.evaluate(x, batch)
            if chunk.model.is_last:
                self._losses.append(y)
            else:
                self._tensors[target] = y
            if training:
                self._note_depth(+1)
            self._span(action, start, self._mark())

        return act

    def draw(self, chunk: Chunk, m: int, *, training: bool = True) -> Batch | None:
        """What the chunk reads of a micro-batch, if it reads anything."""
        model, reads = chunk.model, set(chunk.model.reads)
        batches = self._batches_of("train" if training else "validation")
        if batches is not None and batches.packed is not None and model.stage_ops.isolates_documents:
            reads.add("documents")
        if not reads:
            return None
        assert batches is not None
        return batches.draw(self._step, m, "train" if training else "validation", reads=reads).to(model.device)

    def _backward(self, action: Action) -> Callable[[], None]:
        chunk, m = self.chunk_of(action.stage), action.micro_batch
        source, target = (Topic.GRADIENT, chunk.stage, m), (Topic.GRADIENT, chunk.stage - 1, m)

        def act() -> None:
            start = self._mark()
            above = self.update.loss_factor if chunk.model.is_last else self._tensors.pop(source)
            gradient = chunk.runner.backward(m, above)
            if not chunk.model.is_first:  # an empty message where no weight in front is trained
                self._tensors[target] = torch.empty(0) if gradient is None else gradient
            self._note_depth(-1)
            self._span(action, start, self._mark())

        return act

    def _send(self, action: Action, *, training: bool) -> Callable[[], None]:
        topic, peer, role = TOPIC[action.role], action.peer, role_of(action)
        codec = self._link_codec(action, self.rank, peer, training=training)
        num_bytes = self.plan.boundary_bytes(action.stage, self.rank, peer, role)
        key, index = (topic, action.stage, action.micro_batch), message_index(action, self._num_micro_batches)

        def act() -> None:
            tensor = self.gathered(self._tensors.pop(key), action)
            if tensor is None:
                return
            message, used = self.transport.buffer(num_bytes), self._codec_now(codec, action)
            if num_bytes:
                used.encode(tensor, self.transport.payload(message))
            if training:
                self._note_positions(codec, action)
            ready = self._mark()
            sent = self.transport.send(message, peer, topic, index)
            self.stats.boundary_bytes += num_bytes
            self._span(action, *((sent.start_s, sent.arrival_s) if sent else (ready, ready)), num_bytes)

        return act

    def _receive(self, action: Action, *, training: bool) -> Callable[[], None]:
        topic, peer = TOPIC[action.role], action.peer
        codec = self._link_codec(action, peer, self.rank, training=training)
        if not self.group.is_leader:
            return self._take_part(action)
        (message,) = self._messages_of(action)
        proven = self._proofs.get((peer, topic, message.index), []) if training else []
        elements, key = (
            self.plan.boundary_elements(action.stage, role_of(action)),
            (topic, action.stage, action.micro_batch),
        )

        def act() -> None:
            start = self._mark()
            data = self.transport.receive(message)
            self.transport.release(proven)
            used = self._codec_now(codec, action)
            tensor = used.decode(data, elements) if elements else torch.empty(0)
            if training:
                self._note_positions(codec, action)
            self._tensors[key] = self.scattered(tensor, action)
            self._span(action, start, self._mark(), message.num_bytes)

        return act

    def _take_part(self, action: Action) -> Callable[[], None]:
        """A RECV of a member that is not its group's leader."""
        key = TOPIC[action.role], action.stage, action.micro_batch

        def act() -> None:
            self._tensors[key] = self.scattered(None, action)

        return act

    def scattered(self, whole: Tensor | None, action: Action) -> Tensor:
        """This member's part of a message: it shares tokens or samples with the others of its group."""
        if self.group.degree == 1:
            assert whole is not None
            return whole
        if not self.plan.boundary_elements(action.stage, role_of(action)):
            return torch.empty(0)
        pieces, is_gradient = self._pieces(action.stage), role_of(action) == "gradient"
        with self._awaiting_leader():
            return self.group.scatter(whole, pieces, self.transport.device, is_gradient=is_gradient)

    @contextmanager
    def _awaiting_leader(self) -> Iterator[None]:
        """What a group's leader begins when other ranks let it; the others tell that they wait for it."""
        if not self.group.is_leader:
            self.heartbeat.wait_for(self.group.leader)
        yield
        self.heartbeat.advance()

    def own_part(self, whole: Tensor, stage: int) -> Tensor:
        """This member's part of what crosses the boundary behind a stage."""
        if self.group.degree == 1 or not whole.numel():
            return whole
        return self.group.part_of(whole, self._pieces(stage), self.group.index, is_gradient=False)

    def gathered(self, part: Tensor, action: Action) -> Tensor | None:
        """The whole message of a group's members, on its leader; None on the others."""
        if self.group.degree == 1:
            return part
        if not self.plan.boundary_elements(action.stage, role_of(action)):
            return part if self.group.is_leader else None
        return self.group.gather(part, self._pieces(action.stage), is_gradient=role_of(action) == "gradient")

    def _pieces(self, stage: int) -> list[Piece]:
        """What crosses the boundary behind a stage, and how members divide it."""
        return own_pieces(self.plan.problem.workload, self.plan.stages[stage].end_op, self.group)

    def _link_codec(self, action: Action, source: int, target: int, *, training: bool) -> TensorCodec | ChangingEnd:
        """The codec of a message; validation has samples of its own, and no delta codec remembers them."""
        workload, stage = self.plan.problem.workload, action.stage
        spec = self.plan.codec_between(source, target, role_of(action))
        codec = boundary_codec(spec, workload.dtype)
        if not (spec.delta and training and self.group.is_leader):
            return codec
        assert self._order is not None
        key = stage, source, target
        if key not in self.memories:
            size, device = self.config.delta_cache_bytes, self.transport.device
            boundary = self.plan.stages[stage].end_op
            self.memories[key] = SampleMemory(workload, boundary, self._order.num_samples, size, device)
        return ChangingEnd(codec, self.memories[key])

    def _codec_now(self, codec: TensorCodec | ChangingEnd, action: Action) -> TensorCodec:
        """Top-k's gradients travel at the positions that the activations came with; changes are those of samples."""
        if isinstance(codec, ChangingEnd):
            assert self._order is not None
            return codec.visit(self._order.ids(self._step, action.micro_batch))
        if isinstance(codec, TopK) and action.role == "gradient":
            return AtPositions(self._positions.pop((action.stage, action.micro_batch)))
        return codec

    def _note_positions(self, codec: TensorCodec | ChangingEnd, action: Action) -> None:
        if isinstance(codec, TopK) and action.role == "activation":
            self._positions[action.stage, action.micro_batch] = codec.position_M

    def _reduce(self, action: Action) -> Callable[[], None]:
        stages = self.reductions.groups[action.group].stages
        wholes = [whole for whole in self.wholes if whole.own.stage in stages]

        def act() -> None:
            is_behind = self.reductions.follows_step(action)
            if is_behind:
                self._step_once()
            start = self._mark()
            for whole in wholes:
                whole.gather_gradients(are_stepped=is_behind)
            if not self.group.is_leader:
                return
            sent = self.reductions.perform(action.group)
            self.stats.reduce_bytes += sent
            self._span(action, start, self._mark(), sent)

        return act

    def _end(self, action: Action) -> Callable[[], None]:
        def act() -> None:
            start = self._mark()
            self._step_once()
            self._has_stepped = False
            if self.plan.zero:
                with self._awaiting_leader():
                    for whole in self.wholes:
                        whole.finish_gradients(are_stepped=True)
                with self.updating:
                    self.update.finish()
                    self.completed_steps = self._step + 1
                self.gather_weights()
            fragment = self.plan.fragment_at(self._step)
            if self.reductions.local and fragment is not None:
                with self.updating:
                    self.reductions.take(fragment)
            self._span(action, start, self._mark())

        return act

    def _step_once(self) -> None:
        """The optimiser's step, if it was not taken yet."""
        if self._has_stepped:
            return
        self._has_stepped = True
        with self._awaiting_leader():
            for whole in self.wholes:
                whole.finish_gradients()
            self.stats.grad_norm = self._agree()
        self.stats.grad_square = self.update.grad_square
        self.stats.skipped = self.update.overflowed
        self.before_update()
        with self.updating:
            self.update.apply(self._step)
            if not self.plan.zero:
                self.completed_steps = self._step + 1
        if not self.plan.zero:
            self.gather_weights()

    def gather_weights(self) -> None:
        """In a group with ZeRO 2, the new weights of all its devices."""
        with self._awaiting_leader():
            for chunk in self.chunks:
                sharded_weights.renew(chunk.model.parameters, self.group)

    def _agree(self) -> float | None:
        scale = self.update.scale
        self.stats.loss_scale = scale.value if scale else None
        before = scale.value if scale else 1.0
        norm = self.update.agree()
        if scale and scale.value != before:
            self.reductions.rescale(scale.value / before)
        return norm


def role_of(action: Action) -> Role:
    """Role of a SEND or RECV."""
    return "activation" if action.role == "activation" else "gradient"
