"""Simulated processes around the machines: they carry messages and hold the tensors (here integers)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from hetplanner.elastic.coordinator.coordinator import Coordinator
from hetplanner.elastic.coordinator.decisions import (
    Committed,
    Decision,
    cut_torn_line,
    decode_decisions,
    encode_decision,
)
from hetplanner.elastic.coordinator.transaction import Phase
from hetplanner.elastic.peer.peer import Peer
from hetplanner.elastic.peer.trainer import Trainer
from hetplanner.elastic.protocol import peer_events
from hetplanner.elastic.protocol.coordinator_events import PeerFailed, Persist, Persisted, PersistFailed, Received, Tick
from hetplanner.elastic.protocol.identity import Replica, Stamp, Token, Version
from hetplanner.elastic.protocol.messages import Message, Send, Work, Worked
from hetplanner.elastic.simulation.model import (
    MODULUS,
    apply_update,
    first_weights,
    read_batch,
    run_backward,
    run_forward,
)

if TYPE_CHECKING:
    from hetplanner.elastic.simulation.simulation import Simulation

TICK_S = 0.2
KEEPALIVE_S = 1.2
"""Until a connection over which nothing comes counts as broken, as measured with gRPC; a kill breaks it at once."""
COORDINATOR = "coordinator"


class Host(ABC):
    """A process: alive or not, perhaps stopped or cut off for a while.

    Attributes:
        hung_until_s: a stopped process does nothing before; what has arrived waits.
        cut_until_s: nothing gets in or out before.
    """

    def __init__(self, world: Simulation, address: str) -> None:
        self.world = world
        self.address = address
        self.is_alive = True
        self.hung_until_s = self.cut_until_s = 0.0

    def tick(self) -> None:
        """Regularly called."""
        self.on_event(Tick())
        self.world.later(TICK_S * self.world.rng.uniform(0.8, 1.2), self, self.tick)

    def receive(self, sender: str, message: Message, payload: int | None) -> None:
        """A message has come, perhaps with a tensor."""
        self.on_event(Received(sender, message))

    def unreachable(self, address: str, message: Message) -> None:
        """A message could not be delivered: no process listens at the address. The coordinator ignores it."""
        return

    @abstractmethod
    def on_event(self, event: Any) -> None:
        """Hands an event to the machine and performs its actions."""

    def send(self, action: Send | peer_events.SendWork | peer_events.Reply) -> None:
        """Puts a message on the network, with the tensor that belongs to it."""
        match action:
            case Send(address=address, message=message):
                self.world.transmit(self, address, message, None)
            case peer_events.SendWork(address=address, work=work, key=key):
                self.world.transmit(self, address, work, self.output(key))
            case peer_events.Reply(address=address, worked=worked, key=key):
                self.world.transmit(self, address, worked, self.input_gradient(key))

    def output(self, key: Any) -> int | None:
        """What goes to the next stage for a key; nothing from a process that computes nothing."""
        return None

    def input_gradient(self, key: peer_events.CallKey) -> int | None:
        """What goes back to the stage before for a key; nothing from a process that computes nothing."""
        return None


class CoordinatorHost(Host):
    """The coordinator and its disk."""

    def __init__(self, world: Simulation) -> None:
        super().__init__(world, COORDINATOR)
        world.disk[:] = cut_torn_line(bytes(world.disk))
        decisions = decode_decisions(bytes(world.disk))
        self.machine = Coordinator(world.settings, decisions, world.fingerprint, world.now_s, world.propose)
        world.prepare_coordinator(self.machine)
        self._perform(self.machine.start())

    def on_event(self, event: Any) -> None:
        """See Host; the simulation may end the process wherever its phase changes."""
        before = self.machine.transaction.phase
        actions = self.machine.handle(event, self.world.now_s)
        after = self.machine.transaction.phase
        if after is Phase.PERSIST and before is not after:
            self.world.checks.decided(self.machine)
        if after is not before and self.world.ends_coordinator(after):
            kept = int(self.world.rng.integers(0, len(actions) + 1))  # It dies in the middle of what it does.
            self._perform(actions[:kept])
            self.world.kill_coordinator(f"entering {after.value}")
            return
        self._perform(actions)

    def unreachable(self, address: str, message: Message) -> None:
        """A refused connection tells of a dead peer."""
        member = getattr(message, "member", None)
        if member is not None:
            self.on_event(PeerFailed(member, "unreachable"))

    def _perform(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Persist(decision=decision):
                    self._write(decision)
                case Send():
                    self.send(action)

    def _write(self, decision: Decision) -> None:
        world = self.world
        if world.now_s < world.disk_full_until_s:
            world.later(0.01, self, lambda: self.on_event(PersistFailed(decision)))
            return
        world.later(0.005, self, lambda: self._flush(decision))
        world.later(0.01, self, lambda: self.on_event(Persisted(decision)))

    def _flush(self, decision: Decision) -> None:
        self.world.disk.extend(encode_decision(decision))
        self.world.checks.durable(decision)
        if isinstance(decision, Committed) and self.world.ends_coordinator(Phase.PERSIST):
            self.world.kill_coordinator("with an untold decision")


class TrainerHost(Host):
    """A trainer."""

    def __init__(self, world: Simulation, name: str, slots: int) -> None:
        super().__init__(world, name)
        self.machine = Trainer(name, COORDINATOR, world.settings, slots, world.random)
        self._works: dict[Any, int] = {}

    def on_event(self, event: Any) -> None:
        """See Host."""
        for action in self.machine.handle(event, self.world.now_s):
            if isinstance(action, peer_events.SendWork):
                self._works[action.key] = read_batch(action.work.version.step, action.work.micro_batch)
            if not isinstance(action, peer_events.CancelWork):
                self.send(action)

    def unreachable(self, address: str, message: Message) -> None:
        """A refused connection ends the call."""
        if isinstance(message, Work):
            self.on_event(peer_events.CallLost(message.call))

    def output(self, key: Any) -> int:
        """The batch."""
        return self._works.pop(key)


@dataclass
class _Data:
    """Tensors of one call."""

    value: int
    output: int = 0
    output_gradient: int = 0
    input_gradient: int = 0


@dataclass
class Reduction:
    """An all-reduce under way: what each member has put in."""

    group: tuple[Replica, ...]
    sums: dict[str, tuple[int, int, tuple[Token, ...]]] = field(default_factory=dict)


class PeerHost(Host):
    """A peer: computes one thing after the other."""

    def __init__(self, world: Simulation, address: str, name: str, speed: float) -> None:
        super().__init__(world, address)
        self.speed = speed
        process = world.random.getrandbits(62)
        self.machine = Peer(name, process, world.fingerprint, speed, COORDINATOR, world.settings, world.random)
        self.weights: int | None = None
        self.gradients: dict[Token, int] = {}
        self.sums: dict[Stamp, int] = {}
        self._data: dict[peer_events.CallKey, _Data] = {}
        self._sent: dict[int, peer_events.CallKey] = {}
        self._busy_until_s = 0.0
        self._out_since_s: dict[str, float] = {}

    def on_event(self, event: Any) -> None:
        """See Host."""
        for action in self.machine.handle(event, self.world.now_s):
            self._perform(action)

    def tick(self) -> None:
        """See Host: also watches the others of its stage, as real peers do, and says whom it cannot reach."""
        out = [address for address in self.machine.stage_peers if not self.world.reaches(self, address)]
        self._out_since_s = {address: self._out_since_s.get(address, self.world.now_s) for address in out}
        for address, since_s in self._out_since_s.items():
            if not self.world.is_there(address) or self.world.now_s - since_s >= KEEPALIVE_S:
                self.on_event(peer_events.Unreachable(address))
        super().tick()

    def receive(self, sender: str, message: Message, payload: int | None) -> None:
        """Keeps the tensor that came along."""
        if isinstance(message, Work) and payload is not None:
            self._data.setdefault((sender, message.call), _Data(payload))
        elif isinstance(message, Worked) and payload is not None:
            call = self._sent.pop(message.call, None)
            if call is not None and call in self._data:
                self._data[call].output_gradient = payload
        super().receive(sender, message, payload)

    def unreachable(self, address: str, message: Message) -> None:
        """A refused connection ends the call."""
        if isinstance(message, Work):
            self.on_event(peer_events.CallLost(message.call))

    def output(self, key: Any) -> int:
        """The activation."""
        return self._data[key].output

    def input_gradient(self, key: peer_events.CallKey) -> int:
        """The gradient of the call's input; the call is over."""
        return self._data.pop(key).input_gradient

    def fold(self, tokens: tuple[Token, ...]) -> tuple[int, int, tuple[Token, ...]]:
        """Sum of gradients, their number, and what was folded."""
        return sum(self.gradients[t] for t in tokens) % MODULUS, len(tokens), tokens

    def _perform(self, action: Any) -> None:
        match action:
            case peer_events.SendWork(work=work, key=key):
                self._sent[work.call] = cast(peer_events.CallKey, key)
                self.send(action)
            case Send() | peer_events.Reply():
                self.send(action)
            case peer_events.RunForward(key=key):
                self._compute(1 / 3, lambda: self._forward(key))
            case peer_events.RunBackward(key=key, token=token):
                if self.machine.stage == self.world.settings.stages - 1:
                    self._data[key].output_gradient = self._data[key].output
                self._compute(2 / 3, lambda: self._backward(key, token))
            case peer_events.FetchState() | peer_events.LoadCheckpoint() | peer_events.InitState():
                self.weights = None
                self._load(action)
            case peer_events.SaveCheckpoint(stage=stage, version=version):
                weights = self.weights
                self.world.later(0.1, self, lambda: self._save(stage, version, weights))
            case peer_events.FoldAndReduce(attempt=attempt, tokens=tokens, group=group):
                self.world.join_reduction(self, attempt, tokens, group)
            case peer_events.DropSum(attempt=attempt):
                self.sums.pop(attempt, None)
            case peer_events.DropContributions():
                self.gradients.clear()
                self._data.clear()
                self._sent.clear()
            case peer_events.ApplyUpdate(attempt=attempt):
                self._compute(0.1, lambda: self._apply(attempt))

    def _compute(self, share: float, then: Any) -> None:
        """Takes a share of a micro-batch's time, after what the peer is busy with."""
        start_s = max(self.world.now_s, self._busy_until_s)
        self._busy_until_s = start_s + share / self.speed * self.world.rng.uniform(0.8, 1.3)
        self.world.later(self._busy_until_s - self.world.now_s, self, then)

    def _forward(self, key: peer_events.CallKey) -> None:
        if key in self._data and self.weights is not None:
            self._data[key].output = run_forward(self.weights, self._data[key].value)
            self.on_event(peer_events.ForwardDone(key))

    def _backward(self, key: peer_events.CallKey, token: Token | None) -> None:
        if key not in self._data or self.weights is None:
            return
        data = self._data[key]
        own, data.input_gradient = run_backward(self.weights, data.value, data.output_gradient)
        if token is not None:
            self.gradients[token] = own
        self.on_event(peer_events.BackwardDone(key))

    def _apply(self, attempt: Stamp) -> None:
        if attempt in self.sums and self.weights is not None:
            self.weights = apply_update(self.weights, self.sums.pop(attempt))
            self.on_event(peer_events.UpdateApplied(attempt))
            self.world.checks.stepped(self)

    def _save(self, stage: int, version: Version, weights: int | None) -> None:
        if weights is not None:
            is_damaged = self.world.faults.damage > 0 and self.world.random.random() < self.world.faults.damage
            self.world.checkpoints[stage, version] = None if is_damaged else weights
            self.on_event(peer_events.CheckpointDone(stage, version))

    def _load(self, order: peer_events.FetchState | peer_events.LoadCheckpoint | peer_events.InitState) -> None:
        """Gets the state in the time that it takes; a neighbour's is copied as it is when asked."""
        weights: int | None
        version: Version | None
        match order:
            case peer_events.FetchState(stage=stage, source=replica):
                weights, version = self.world.snapshot(self, stage, replica)
            case peer_events.LoadCheckpoint(stage=stage, saved=saved, version=version):
                weights = self.world.checkpoints.get((stage, saved))
            case peer_events.InitState(stage=stage, version=version):
                weights = first_weights(stage)
        delay_s = 0.02 if weights is None else self.world.rng.exponential(self.world.faults.fetch_s)

        def finish() -> None:
            if self.machine.member == order.member and self.weights is None:
                self.weights = weights
                self.on_event(peer_events.StateLoaded(order.member, version if weights is not None else None))
                self.world.checks.stepped(self)

        self.world.later(delay_s, self, finish)

    def fold_done(self, attempt: Stamp, total: int | None, count: int | None) -> None:
        """The all-reduce ended."""
        if total is not None:
            self.sums[attempt] = total
        self.on_event(peer_events.FoldDone(attempt, count))
