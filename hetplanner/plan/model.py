"""The plan: self-contained, versioned, data only. A search finds it, a simulator explains it, a runtime executes it.

Words: a *stage* is a contiguous range of ops; a *replica* of a stage is the list of devices that hold one copy
of it (one device, or the first of a worker group); a *route* is the chain of replicas, one per stage, that a share of
the micro-batches takes; a *rank* is a device that serves a replica, or a worker group; a *process* is one device; a
*chunk* is what a rank holds of one stage. With the schedule `interleaved` a rank may serve several stages, else it
serves one.
"""

import hashlib
import itertools
import json
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from hetplanner.codecs.spec import NO_CODEC, Codec
from hetplanner.plan.cut import check_cut
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.names import ReducerName
from hetplanner.schema import Name, Noun, Text
from hetplanner.workload.model import Op

Role = Literal["activation", "gradient"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved"]


class Stage(Noun):
    """Ops `first_op` .. `end_op` (exclusive), its replicas, and how many micro-batches each may have in flight.

    Attributes:
        recompute: activations are computed again in the backward pass instead of kept.
        reduce_codec: how gradients travel between the replicas (with local steps: changes of weights).
        error_feedback: what `reduce_codec` loses is kept, in float32, and added before the next reduction. Without
            it top-k is refused; a codec that loses nothing has nothing to keep, and powersgd always keeps it.
    """

    first_op: Annotated[int, Field(strict=True, ge=0)]
    end_op: Annotated[int, Field(strict=True, ge=1)]
    replicas: Annotated[tuple[tuple[Name, ...], ...], Field(min_length=1)]
    in_flight: Annotated[int, Field(strict=True, ge=1)]
    recompute: bool = False
    reduce_codec: Codec = NO_CODEC
    error_feedback: bool = False

    @model_validator(mode="after")
    def _every_gradient_counts(self) -> Self:
        if self.reduce_codec.name == "topk" and not self.error_feedback:
            raise ValueError(
                "reduce_codec: topk would drop gradients for good (nothing feeds the error back); set error_feedback,"
                " or use fp16, bf16, int8 or int4"
            )
        if self.reduce_codec.delta:
            raise ValueError("reduce_codec: delta is for activations; gradients have error_feedback")
        return self


class Route(Noun):
    """One replica per stage, and the number of micro-batches of every step that go this way."""

    replicas: Annotated[tuple[StrictInt, ...], Field(min_length=1)]
    micro_batches: Annotated[int, Field(strict=True, ge=1)]


class LinkCodec(Noun):
    """Compression of one role on one directed link; links that are not listed carry dense tensors.

    `topk` goes both ways: its gradients travel back at the positions that the activations came with.
    """

    from_device: Annotated[Name, Field(alias="from")]
    to_device: Annotated[Name, Field(alias="to")]
    role: Role
    codec: Codec
    model_config = Noun.model_config | {"validate_by_name": True, "validate_by_alias": True}

    @model_validator(mode="after")
    def _is_for_single_messages(self) -> Self:
        if self.codec.name == "powersgd":
            raise ValueError("codec: powersgd adds up factors of gradients; it is for reduce_codec only")
        if self.codec.delta and self.role != "activation":
            raise ValueError("codec: delta is for activations only; remove it")
        return self


class OuterOptimizer(Noun):
    """Nesterov's momentum on the averaged change of the weights since replicas were last equal.

    With learning rate 1 and momentum 0 the new weights are the replicas' mean.
    Source: Douillard et al. 2023 (DiLoCo, arXiv 2311.08105), whose defaults these are.
    """

    learning_rate: Annotated[float, Field(strict=True, gt=0, le=10)] = 0.7
    momentum: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.9


class Provenance(Noun):
    """Where a plan comes from.

    Attributes:
        simulated_step_s: what the event simulator made of it, if the search asked.
        derived: from which plan it was made without a search, and what was changed.
    """

    planner: Name = "hand"
    seed: int | None = None
    budget: Text | None = None
    evaluations: Annotated[int, Field(strict=True, ge=0)] = 0
    seconds: Annotated[float, Field(strict=True, ge=0)] = 0.0
    lower_bound: float | None = None
    simulated_step_s: float | None = None
    version: Text = ""
    derived: Text | None = None


class Plan(Noun):
    """Who does what. See the module's words; `problem` makes it self-contained.

    Attributes:
        overlap: a stage reduces its gradients while earlier stages still drain; there is no other rule.
        local_steps: optimiser steps that the replicas of a stage take by themselves, each with the gradients of its
            own micro-batches, before the changes of their weights are averaged. 1 without `outer`: gradients are added
            up in every step, and all replicas are equal all the time.
        outer: what becomes of the averaged change; None takes it as it is (the mean of the replicas' weights).
        fragments: pieces of every stage's weights that are averaged in turn, each once in `local_steps` steps, evenly
            spread over them; what a synchronisation sends falls by as much. 1: all at once.
        order_scale: the order of actions is the one for computing that takes this many times as long as the cost model
            says; None: 1.
    """

    problem: Problem
    mode: Literal["static"] = "static"
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    routes: Annotated[tuple[Route, ...], Field(min_length=1)]
    schedule: ScheduleName = "1f1b"
    link_codecs: tuple[LinkCodec, ...] = ()
    reducer: ReducerName = "sharded-ps"
    overlap: Literal[True] = True
    local_steps: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    outer: OuterOptimizer | None = None
    fragments: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    order_scale: Annotated[float, Field(strict=True, ge=1e-3, le=1e3)] | None = None
    ranks: Annotated[tuple[Name, ...], Field(min_length=1)]
    estimate: Estimate | None = None
    provenance: Provenance = Provenance()

    @model_validator(mode="after")
    def _structure_holds(self) -> Self:
        check_cut(self.stages, self.problem.workload)
        self._check_routes()
        self._check_devices()
        self._check_codecs()
        self._check_zero()
        if self.fragments > self.local_steps:
            raise ValueError(
                f"fragments: must be at most local_steps {self.local_steps}, since each step averages at most one, got"
                f" {self.fragments}; use fewer or take more local steps"
            )
        return self

    def _check_zero(self) -> None:
        if self.zero and self.is_local:
            raise ValueError(
                "local_steps, outer: replicas that step by themselves need all states of the optimizer each, and"
                " constraints.zero is 1; use 1 local step without outer optimizer, or zero 0"
            )
        for s, stage in enumerate(self.stages if self.zero else ()):
            if stage.reduce_codec.name == "powersgd":
                raise ValueError(
                    f"stages[{s}].reduce_codec: powersgd gives all replicas the same factors, and with constraints.zero"
                    " 1 each reduces its shard of the gradients; use another codec, or zero 0"
                )

    def _check_routes(self) -> None:
        for r, route in enumerate(self.routes):
            if len(route.replicas) != len(self.stages):
                raise ValueError(f"routes[{r}].replicas: must name one replica for each of {len(self.stages)} stages")
            for s, replica in enumerate(route.replicas):
                there = len(self.stages[s].replicas)
                if not 0 <= replica < there:
                    raise ValueError(f"routes[{r}].replicas[{s}]: stage {s} has {there} replicas, got {replica}")
        total, wanted = sum(r.micro_batches for r in self.routes), self.problem.workload.num_micro_batches
        if total != wanted:
            raise ValueError(f"routes: micro_batches must add up to {wanted} (global_batch / micro_batch), got {total}")
        for s, stage in enumerate(self.stages):
            idle = set(range(len(stage.replicas))) - {route.replicas[s] for route in self.routes}
            if idle:
                raise ValueError(f"stages[{s}].replicas[{min(idle)}]: no route uses it; remove it or add a route")

    def _check_devices(self) -> None:
        known, used = set(self.problem.usable_devices), []
        for s, stage in enumerate(self.stages):
            for r, replica in enumerate(stage.replicas):
                if len(replica) != 1:
                    raise ValueError(f"stages[{s}].replicas[{r}]: must hold exactly 1 device, got {len(replica)}")
                if replica[0] not in known:
                    raise ValueError(
                        f"stages[{s}].replicas[{r}]: {replica[0]!r:.60} is no usable device of the cluster"
                    )
                used.append(replica[0])
        self._check_chunks(used)
        in_use = set(used)
        if len(self.ranks) != len(set(self.ranks)) or set(self.ranks) != in_use:
            raise ValueError("ranks: must list every device of the stages exactly once")
        for i, rule in enumerate(self.link_codecs):
            if rule.from_device not in in_use or rule.to_device not in in_use:
                raise ValueError(f"link_codecs[{i}]: {rule.from_device!r:.60} or {rule.to_device!r:.60} is in no stage")

    def _check_chunks(self, used: list[str]) -> None:
        """A device serves one stage, or with schedule interleaved several that do not follow on one another."""
        if len(set(used)) == len(used):
            return
        if self.schedule != "interleaved":
            twice = next(d for d in used if used.count(d) > 1)
            raise ValueError(
                f"stages: device {twice!r:.60} is used twice; a device serves one replica of one stage, unless the"
                " schedule is interleaved"
            )
        for s, stage in enumerate(self.stages):
            here = [device for replica in stage.replicas for device in replica]
            if len(set(here)) < len(here):
                twice = next(d for d in here if here.count(d) > 1)
                raise ValueError(f"stages[{s}]: device {twice!r:.60} serves two replicas of this stage; use it once")
        if any(len(stage.replicas) != len(self.routes) for stage in self.stages):
            raise ValueError("routes: an interleaved plan has as many replicas of every stage as routes")
        for r, route in enumerate(self.routes):
            path = [self.stages[s].replicas[replica][0] for s, replica in enumerate(route.replicas)]
            for s, (one, two) in enumerate(itertools.pairwise(path)):
                if one == two:
                    raise ValueError(
                        f"routes[{r}]: stages {s} and {s + 1} are both on {one!r:.60}; join them into one stage"
                    )

    def _check_codecs(self) -> None:
        for i, rule in enumerate(self.link_codecs):
            back: Role = "gradient" if rule.role == "activation" else "activation"
            other = self._codecs.get((rule.to_device, rule.from_device, back), NO_CODEC)
            if rule.codec.name == "topk" and other != rule.codec:
                raise ValueError(
                    f"link_codecs[{i}].codec: topk needs the same codec for the {back}s the other way"
                    f" ({rule.to_device!r:.60} to {rule.from_device!r:.60}), which have {other}: gradients travel at"
                    " the activations' positions"
                )

    @property
    def zero(self) -> int:
        """Stage of ZeRO: 1 where each replica has a shard of the optimizer's states, and steps that of the weights."""
        return self.problem.constraints.zero

    @property
    def reduction_text(self) -> str:
        """'ring', or 'ring, ZeRO 1'."""
        return f"{self.reducer}, ZeRO {self.zero}" if self.zero else self.reducer

    # -- local steps ------------------------------------------------------------------------------

    @property
    def is_local(self) -> bool:
        """Whether replicas step by themselves and average changes of weights, instead of adding up gradients."""
        return self.local_steps > 1 or self.outer is not None

    def fragment_at(self, step: int) -> int | None:
        """The fragment that replicas average in a step (counted from 0), None if they take it by themselves.

        Fragment 0 comes in the last of every `local_steps`, fragment f about f / `fragments` of a round before it.
        Source: Douillard et al. 2025 (Streaming DiLoCo, arXiv 2501.18512), section 2.2.
        """
        ahead = -(step + 1) % self.local_steps
        fragment = -(-ahead * self.fragments // self.local_steps)
        return fragment if fragment * self.local_steps // self.fragments == ahead else None

    @property
    def kinds_of_step(self) -> tuple[tuple[int, float], ...]:
        """A step of every kind in a round of local steps, and what share of all steps are of its kind.

        A kind is what replicas average: each of the fragments, or (the last, if there is room for it) nothing.
        """
        size = self.local_steps
        steps = [(size - 1 - f * size // self.fragments, 1.0 / size) for f in range(self.fragments)]
        if self.fragments == size:
            return tuple(steps)
        alone = next(step for step in reversed(range(size)) if self.fragment_at(step) is None)
        return (*steps, (alone, 1.0 - self.fragments / size))

    # -- look-ups ---------------------------------------------------------------------------------

    @cached_property
    def _rank(self) -> dict[str, int]:
        return {device: rank for rank, device in enumerate(self.ranks)}

    def rank_of(self, device_id: str) -> int:
        """Rank of a device. Raises KeyError."""
        return self._rank[device_id]

    @cached_property
    def processes(self) -> tuple[str, ...]:
        """The device of every process of a run: those of `ranks`, then the other members of their groups."""
        others = [device for group in self._groups.values() for device in group.devices[1:]]
        return (*self.ranks, *others)

    @cached_property
    def processes_of_rank(self) -> tuple[tuple[int, ...], ...]:
        """The processes of every rank, in the order of its group's devices: the first has the number of the rank."""
        number = {device: process for process, device in enumerate(self.processes)}
        groups = self._groups
        return tuple(
            tuple(number[member] for member in groups[device].devices) if device in groups else (number[device],)
            for device in self.ranks
        )

    @cached_property
    def rank_of_process(self) -> tuple[int, ...]:
        """The rank that every process works for."""
        found = {p: rank for rank, processes in enumerate(self.processes_of_rank) for p in processes}
        return tuple(found[process] for process in range(len(self.processes)))

    @cached_property
    def _groups(self) -> dict[str, WorkerGroup]:
        """By its first device, every group that serves a replica, in the order of ranks."""
        known = {group.leader: group for group in self.problem.groups or ()}
        return {device: known[device] for device in self.ranks if device in known}

    @cached_property
    def places_of_rank(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """(stage, replica) of every chunk that a rank serves, in stage order; one chunk a rank unless interleaved."""
        places: dict[str, list[tuple[int, int]]] = {device: [] for device in self.ranks}
        for s, stage in enumerate(self.stages):
            for r, replica in enumerate(stage.replicas):
                for device in replica:
                    places[device].append((s, r))
        return tuple(tuple(places[device]) for device in self.ranks)

    @property
    def is_interleaved(self) -> bool:
        """Whether a rank serves several stages."""
        return any(len(places) > 1 for places in self.places_of_rank)

    @cached_property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """(rank, stage) of every chunk, rank by rank: the order of arrays by chunk, which without interleaving is
        the order of ranks.
        """
        return tuple((rank, s) for rank, places in enumerate(self.places_of_rank) for s, _ in places)

    @cached_property
    def chunk_index(self) -> dict[tuple[int, int], int]:
        """Position in `chunks` by (rank, stage)."""
        return {chunk: i for i, chunk in enumerate(self.chunks)}

    def rank_at(self, stage: int, replica: int) -> int:
        """Rank that holds a replica of a stage."""
        return self._rank[self.stages[stage].replicas[replica][0]]

    @cached_property
    def stage_of_op(self) -> tuple[int, ...]:
        """Stage of every op."""
        return tuple(s for s, stage in enumerate(self.stages) for _ in range(stage.first_op, stage.end_op))

    @cached_property
    def held_S(self) -> tuple[int, ...]:
        """Micro-batches that a replica of each stage holds at its peak: its in-flight depth, or all in GPipe."""
        if self.schedule != "gpipe":
            return tuple(stage.in_flight for stage in self.stages)
        load = [[0] * len(stage.replicas) for stage in self.stages]
        for route in self.routes:
            for s, replica in enumerate(route.replicas):
                load[s][replica] += route.micro_batches
        return tuple(max(of_stage) for of_stage in load)

    def ops_of(self, stage: int) -> tuple[Op, ...]:
        """Ops of a stage."""
        return self.problem.workload.graph.ops[self.stages[stage].first_op : self.stages[stage].end_op]

    @cached_property
    def route_of_micro_batch(self) -> tuple[int, ...]:
        """Route of every micro-batch of a step. Micro-batches are dealt so that routes fill evenly by share."""
        dealt = [(k / r.micro_batches, i) for i, r in enumerate(self.routes) for k in range(1, r.micro_batches + 1)]
        return tuple(route for _, route in sorted(dealt))

    def path_of_micro_batch(self, micro_batch: int) -> tuple[int, ...]:
        """Ranks that a micro-batch visits, stage by stage."""
        route = self.routes[self.route_of_micro_batch[micro_batch]]
        return tuple(self.rank_at(s, replica) for s, replica in enumerate(route.replicas))

    @cached_property
    def _codecs(self) -> dict[tuple[str, str, str], Codec]:
        return {(k.from_device, k.to_device, k.role): k.codec for k in self.link_codecs}

    def codec_between(self, from_rank: int, to_rank: int, role: Role) -> Codec:
        """Codec of a role on the directed link between two ranks."""
        return self._codecs.get((self.ranks[from_rank], self.ranks[to_rank], role), NO_CODEC)

    def boundary_elements(self, stage: int, role: Role = "activation") -> int:
        """Elements of one micro-batch's message across the boundary behind `stage` (0 after the last).

        All outputs that later stages read, those of earlier stages included, as one flat message. Their gradients are
        as many, or none where no weight in front is trained: the message back is then empty.
        """
        workload, end = self.problem.workload, self.stages[stage].end_op
        return workload.boundary_elements[end] if role == "activation" else workload.gradient_elements[end]

    def boundary_bytes(self, stage: int, from_rank: int, to_rank: int, role: Role) -> int:
        """Bytes on the wire of one micro-batch across the boundary behind `stage`, in the direction of `role`."""
        elements = self.boundary_elements(stage, role)
        if not elements:
            return 0
        codec = self.codec_between(from_rank, to_rank, role)
        return codec.wire_bytes(elements, self.problem.workload.dtype_bytes, positions_known=role == "gradient")

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal for equal plans."""
        text = json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
