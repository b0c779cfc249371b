"""The weights of a whole model and what crosses its boundaries, without allocating anything.

All hosts agree on both: the flat buffers of a stage, the order in a saved model, and a boundary's flat tensor
follow from them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from hetplanner.runtime.device_group.group import DeviceGroup, Piece
from hetplanner.runtime.model.modules import ADAPTER_LEAVES, MODULES
from hetplanner.workload.calls import STATISTICS_CALLS
from hetplanner.workload.fine_tuning import FineTuning
from hetplanner.workload.model import Op
from hetplanner.workload.program import Program, references
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class ModelWeight:
    """One weight of the model.

    Attributes:
        name: in a saved model.
        users: indices of all ops that use it, ascending; the first owns it.
        is_trained: whether it has a gradient; a frozen weight stays as it was loaded.
    """

    name: str
    shape: tuple[int, ...]
    users: tuple[int, ...]
    is_trained: bool = True

    @property
    def owner(self) -> int:
        """The op that owns it."""
        return self.users[0]

    @property
    def num_elements(self) -> int:
        """Elements of it."""
        return prod(self.shape)

    def is_inside(self, first_op: int, end_op: int) -> bool:
        """Whether no op outside the range uses it."""
        return all(first_op <= op < end_op for op in self.users)


def model_weights(workload: Workload) -> tuple[ModelWeight, ...]:
    """All weights of the model in op order, each once."""
    if workload.program is not None:
        weights = _program_weights(workload, workload.program)
    else:
        assert workload.transformer is not None
        weights = _transformer_weights(workload, workload.transformer)
    return tuple(sorted(weights, key=lambda weight: weight.owner))  # stable: an op's weights stay in order


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of a stage: where it lives in a flat buffer of the stage and what it is called in a saved model.

    Attributes:
        op_index: the op that owns it.
        is_tied: whether another stage holds it, too.
    """

    name: str
    op_index: int
    first: int
    shape: tuple[int, ...]
    is_tied: bool

    @property
    def end(self) -> int:
        """First element behind it."""
        return self.first + prod(self.shape)


def stage_weights(workload: Workload, first_op: int, end_op: int) -> tuple[tuple[ModelWeight, Weight], ...]:
    """The trained weights that a stage holds, in the order of its flat buffer: its own in op order, then those that are
    tied across stages.
    """
    return _placed((w for w in model_weights(workload) if w.is_trained), first_op, end_op)


def tied_ranges(workload: Workload, weights: Sequence[Weight]) -> tuple[int, dict[str, tuple[int, int]]]:
    """Where a stage's own weights end in its flat buffer, and by owner's name the range of each weight behind that
    other stages hold, too.
    """
    end = weights[-1].end if weights else 0
    own_end = next((weight.first for weight in weights if weight.is_tied), end)
    tied: dict[str, tuple[int, int]] = {}
    for weight in weights:
        if weight.is_tied:
            owner = workload.graph.ops[weight.op_index].name
            tied[owner] = (tied.get(owner, (weight.first, 0))[0], weight.end)
    return own_end, tied


def frozen_weights(workload: Workload, first_op: int, end_op: int) -> tuple[tuple[ModelWeight, Weight], ...]:
    """The frozen weights that a stage holds, in the order of the buffer that they have for themselves."""
    return _placed((w for w in model_weights(workload) if not w.is_trained), first_op, end_op)


def held_weights(workload: Workload, first_op: int, end_op: int) -> tuple[tuple[ModelWeight, Weight], ...]:
    """All weights that a stage holds: trained ones, then frozen ones, each by its place in its own buffer."""
    return stage_weights(workload, first_op, end_op) + frozen_weights(workload, first_op, end_op)


def _placed(weights: Iterable[ModelWeight], first_op: int, end_op: int) -> tuple[tuple[ModelWeight, Weight], ...]:
    held = [w for w in weights if any(first_op <= op < end_op for op in w.users)]
    ordered = sorted(held, key=lambda w: not w.is_inside(first_op, end_op))  # stable: ops stay in order
    found, end = [], 0
    for w in ordered:
        placed = Weight(w.name, w.owner, end, w.shape, not w.is_inside(first_op, end_op))
        found.append((w, placed))
        end = placed.end
    return tuple(found)


def _transformer_weights(workload: Workload, config: TransformerConfig) -> list[ModelWeight]:
    graph, found, tuning = workload.graph, [], workload.fine_tuning
    adapters = tuning.adapters if tuning is not None else None
    for index, op in enumerate(graph.ops):
        if op.tied is not None:
            continue
        for local, weight in MODULES[op.kind](config, index, adapters).named_parameters():
            # Layers share all their weights, the embedding shares its table of tokens alone.
            is_shared = op.kind != "embedding" or local == "tokens.weight"
            shared = graph.tied_groups.get(op.name) if is_shared else None
            is_trained = _is_trained(tuning, op, local)
            found.append(ModelWeight(f"{op.name}.{local}", tuple(weight.shape), shared or (index,), is_trained))
    return found


def _is_trained(tuning: FineTuning | None, op: Op, local: str) -> bool:
    if tuning is None:
        return True
    if tuning.adapters is not None:
        return local.endswith(ADAPTER_LEAVES)
    return op.kind != "embedding" and not (op.layer is not None and op.layer < tuning.frozen_layers)


def _program_weights(workload: Workload, program: Program) -> list[ModelWeight]:
    index, frozen = {op.name: i for i, op in enumerate(workload.graph.ops)}, set(program.frozen)
    return [
        ModelWeight(name, program.parameters[name].shape, tuple(sorted(index[op] for op in ops)), name not in frozen)
        for name, ops in program.users.items()
    ]


@dataclass(frozen=True, slots=True)
class RunningBuffer:
    """Statistics that training moves, by their name in the model, and the op that moves them first."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    op: int


def running_buffers(workload: Workload) -> tuple[RunningBuffer, ...]:
    """All running statistics of the model in op order, counters of batches included."""
    program = workload.program
    if program is None:
        return ()
    index = {op.name: i for i, op in enumerate(workload.graph.ops)}
    moved_by: dict[str, int] = {}
    for node in program.nodes:
        if node.call in STATISTICS_CALLS and node.op is not None:
            for kind, name in references(node):
                if kind == "buffer":
                    moved_by.setdefault(name, index[node.op])
                    # No call reads the counter next to the running mean.
                    moved_by.setdefault(name.removesuffix("running_mean") + "num_batches_tracked", index[node.op])
    found = [
        RunningBuffer(name, buffer.shape, buffer.dtype, moved_by[name])
        for name, buffer in program.buffers.items()
        if buffer.running and name in moved_by
    ]
    return tuple(sorted(found, key=lambda buffer: buffer.op))


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor of a saved model; the stage of `op` saves it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    op: int

    @property
    def num_elements(self) -> int:
        """Elements of it."""
        return prod(self.shape)


def saved_tensors(workload: Workload) -> tuple[SavedTensor, ...]:
    """All weights and running statistics in op order: what a saved model holds, in this order."""
    weights = [SavedTensor(w.name, w.shape, "float32", w.owner) for w in model_weights(workload)]
    buffers = [SavedTensor(b.name, b.shape, b.dtype, b.op) for b in running_buffers(workload)]
    return tuple(sorted((*weights, *buffers), key=lambda tensor: tensor.op))


@dataclass(frozen=True, slots=True)
class Crossing:
    """One tensor of a boundary.

    Attributes:
        op: index of the op that gives it.
        node: that gives it, in a captured model.
        axis: along which the members of a group divide it: by tokens, behind the head by words; None: they do not.
    """

    op: int
    node: str
    shape: tuple[int, ...]
    axis: int | None = 1

    @property
    def num_elements(self) -> int:
        """Elements of it."""
        return prod(self.shape)


def crossing_tensors(workload: Workload, boundary: int) -> tuple[Crossing, ...]:
    """What one micro-batch hands on in front of op `boundary`, in the order of the flat tensor."""
    found = []
    for index in workload.graph.crossing_ops[boundary]:
        op = workload.graph.ops[index]
        if workload.program is not None:
            program = workload.program
            found += [
                Crossing(index, node, program.shape_of[node], 0 if program.has_samples(node) else None)
                for node in program.outputs.get(op.name, ())
            ]
        else:
            width = workload.output_elements[index] // (workload.micro_batch * workload.seq_len)
            axis = 2 if op.kind == "head" else 1
            found.append(Crossing(index, "", (workload.micro_batch, workload.seq_len, width), axis))
    return tuple(found)


def own_pieces(workload: Workload, boundary: int, group: DeviceGroup) -> list[Piece]:
    """What one micro-batch hands on in front of op `boundary`, and how members of a group divide it."""
    found = crossing_tensors(workload, boundary)
    if workload.program is None or group.tensor_degree == 1:
        return [Piece(crossing.shape, group.divided_axis(crossing.axis)) for crossing in found]
    layouts = workload.division(group.degree).layouts
    pieces = []
    for crossing in found:
        layout = layouts.get(crossing.node)
        piece = Piece(crossing.shape, None)
        pieces.append(piece if layout is None else piece._replace(axis=layout.axis, blocks=layout.blocks))
    return pieces
