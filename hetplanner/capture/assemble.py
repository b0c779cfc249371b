"""From a factory to a workload: exported, measured, grouped, written down as data."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hetplanner.capture import progress
from hetplanner.capture.calls import Call, Ref
from hetplanner.capture.cost import CallCost, measure
from hetplanner.capture.export import Exported, Factory, export_model
from hetplanner.capture.ops import Group, group_calls, kind_of, layers_of
from hetplanner.capture.samples import per_sample
from hetplanner.errors import InvalidInput
from hetplanner.schema import checked
from hetplanner.workload.model import Op, OpGraph
from hetplanner.workload.program import MAX_BUFFER_VALUES, Buffer, Node, Parameter, PerSample, Program
from hetplanner.workload.task import HiddenTokens, Task, num_hidden
from hetplanner.workload.workload import Workload

DEFAULT_GLOBAL_BATCH = 64

RUN_LENGTHS_FROM = 65_536
"""Elements above which a constant is stored with run lengths."""


def capture_workload(
    factory: Factory,
    name: str,
    *,
    micro_batch: int | None = None,
    global_batch: int | None = None,
    provenance: str | None = None,
    task: Task | None = None,
) -> Workload:
    """A module as a workload that can be planned and trained without its code; its weights are never in memory.

    FLOPs, kept and sent bytes are of float32, per sample: of a micro-batch, divided by its samples and rounded up.
    Parameters that the forward pass does not use are left out.

    Args:
        factory: see :func:`hetplanner.capture.export.export_model`.
        name: of the workload.
        micro_batch: samples in a micro-batch; the examples' number if not given.
        global_batch: samples in a step; the least multiple of the micro-batch from 64 on if not given.
        provenance: where the module came from.
        task: what a model of token ids learns; None for a label that counts at every place.

    Raises:
        InvalidInput: the module cannot be captured; names the operator, its line and what to change.
    """
    exported = export_model(factory, name, micro_batch)
    numbers = per_sample(exported)
    progress.begin(f"measuring {len(exported.calls):,} operators")
    groups = group_calls(exported)
    costs, lowered = measure(exported), measure(exported, lowered=True)
    progress.begin("writing the workload")
    batch = len(exported.inputs)
    graph = _graph(exported, groups, costs, lowered)
    return Workload(
        name=name,
        captured=graph,
        program=_program(exported, groups, task, numbers),
        global_batch=global_batch or batch * math.ceil(DEFAULT_GLOBAL_BATCH / batch),
        micro_batch=batch,
        seq_len=_num_targets(exported, task),
        dtype="float32",
        provenance=provenance,
    )


# -- the OP-DAG -----------------------------------------------------------------------------------


def _graph(
    exported: Exported, groups: list[Group], costs: dict[str, CallCost], lowered: dict[str, CallCost]
) -> OpGraph:
    home = {call.name: group for group in groups for call in group.calls}
    outputs = op_outputs(groups)
    shares = _with_free_calls(exported, home)
    layers, batch = layers_of(groups), len(exported.inputs)
    head = next((g for g in reversed(groups[:-1]) if kind_of(g, is_loss=False, is_head=False) == "linear"), None)
    ops = []
    for i, group in enumerate(groups):
        calls, in_16 = ([of[name] for name in shares[id(group)]] for of in (costs, lowered))
        sent = [call.value for call in group.calls if call.name in outputs[id(group)]] or (
            [group.calls[-1].value] if i == len(groups) - 1 else []
        )
        reads = dict.fromkeys(
            home[ref.name].name for call in group.calls for ref in call.reads()
            if ref.kind == "node" and ref.name in home and home[ref.name] is not group
        )  # fmt: skip
        held = (*group.owns, *group.borrows)
        ops.append(
            Op(
                name=group.name,
                kind=kind_of(group, is_loss=i == len(groups) - 1, is_head=group is head),
                layer=layers[i],
                inputs=tuple(reads),
                num_params=sum(exported.parameters[name].numel() for name in held),
                num_trained=_trained(exported, held),
                tied=group.tied.name if group.tied else None,
                forward_flops=sum(c.forward_flops for c in calls) / batch,
                backward_flops=sum(c.backward_flops for c in calls) / batch,
                activation_bytes=math.ceil(sum(c.kept_bytes for c in calls) / batch),
                working_bytes=math.ceil(max((c.working_bytes for c in calls), default=0) / batch),
                resized_activation_bytes=math.ceil(sum(c.kept_bytes for c in in_16) / batch),
                resized_working_bytes=math.ceil(max((c.working_bytes for c in in_16), default=0) / batch),
                largest_weight=_largest(exported, held),
                output_bytes=math.ceil(sum(v.numel() * v.element_size() for v in sent) / batch),
            )
        )
    return OpGraph(ops=tuple(ops))


def _largest(exported: Exported, names: Sequence[str]) -> int:
    """Elements of the largest trained one of these weights."""
    return max((exported.parameters[name].numel() for name in names if name not in exported.frozen), default=0)


def _trained(exported: Exported, names: Sequence[str]) -> int | None:
    """Elements of the trained ones of these weights; None where all weights of the model are trained."""
    frozen = exported.frozen
    return sum(exported.parameters[name].numel() for name in names if name not in frozen) if frozen else None


def op_outputs(groups: list[Group]) -> dict[int, tuple[str, ...]]:
    """By id of the operator, the calls whose values other operators read, in order."""
    home = {call.name: group for group in groups for call in group.calls}
    read = {
        ref.name for group in groups for call in group.calls for ref in call.reads()
        if ref.kind == "node" and home.get(ref.name, group) is not group
    }  # fmt: skip
    return {id(group): tuple(call.name for call in group.calls if call.name in read) for group in groups}


def _with_free_calls(exported: Exported, home: dict[str, Group]) -> dict[int, list[str]]:
    """By operator, its calls and the free ones that it is the first to need: those count where they are needed."""
    calls = {call.name: call for call in exported.calls}
    shares: dict[int, list[str]] = {}
    counted: set[str] = set()
    for call in exported.calls:
        group = home.get(call.name)
        if group is None:
            continue
        pending = [call.name]
        while pending:
            name = pending.pop()
            if name in counted or home.get(name, group) is not group:
                continue
            counted.add(name)
            shares.setdefault(id(group), []).append(name)
            pending += [ref.name for ref in calls[name].reads() if ref.kind == "node" and ref.name not in home]
    return shares


# -- the program ----------------------------------------------------------------------------------


def _num_targets(exported: Exported, task: Task | None) -> int:
    labels = exported.labels.numel() // len(exported.inputs)
    return num_hidden(labels) if isinstance(task, HiddenTokens) else labels


def _program(
    exported: Exported, groups: list[Group], task: Task | None, numbers: dict[str, tuple[PerSample, ...]] | None
) -> Program:
    home = {call.name: group for group in groups for call in group.calls}
    outputs = op_outputs(groups)

    owners = {name: group for group in groups for name in group.owns}
    return checked(
        Program,
        {
            "micro_batch": len(exported.inputs),
            "inputs": tuple(exported.inputs.shape),
            "inputs_dtype": _dtype(exported.inputs.dtype),
            "labels": tuple(exported.labels.shape),
            "labels_dtype": _dtype(exported.labels.dtype),
            "parameters": {
                name: Parameter(
                    shape=tuple(exported.parameters[name].shape),
                    op=owners[name].name,
                    init=exported.build.init_of(name, exported.parameters[name]),
                )
                for name in owners
            },
            "buffers": {
                name: _buffer(name, value, name in exported.running) for name, value in exported.buffers.items()
            },
            "frozen": tuple(sorted(exported.frozen)),
            "nodes": tuple(_node(call, home.get(call.name)) for call in exported.calls),
            "outputs": {group.name: outputs[id(group)] for group in groups},
            "loss": exported.loss.name,
            "num_targets": _num_targets(exported, task),
            "task": task,
            "per_sample": numbers,
        },
        "program",
    )


def _buffer(name: str, value: Tensor, running: bool) -> Buffer:
    values, run_lengths = value.detach().reshape(-1), None
    if value.numel() > RUN_LENGTHS_FROM:  # masks hold few values, each many times
        values, counts = torch.unique_consecutive(values, return_counts=True)
        run_lengths = tuple(counts.tolist())
    if len(values) > MAX_BUFFER_VALUES:
        raise InvalidInput(
            f"buffer {name} {list(value.shape)}: must hold at most {MAX_BUFFER_VALUES} values that differ from the one"
            f" before, has {len(values)}; compute it in forward (torch.arange, torch.ones(...).tril()) instead of"
            " keeping it"
        )
    return Buffer(
        shape=tuple(value.shape),
        dtype=_dtype(value.dtype),
        values=tuple(values.tolist()),
        run_lengths=run_lengths,
        running=running,
    )


def _node(call: Call, group: Group | None) -> Node:
    value = call.value if isinstance(call.value, Tensor) else None
    if value is not None and value.is_complex():
        raise InvalidInput(f"{call.where}: '{call.title}' gives complex numbers, which cannot be stored; use real ones")
    return Node(
        name=call.name,
        call=call.title,
        args=tuple(_plain(arg, call) for arg in call.args),
        kwargs={key: _plain(arg, call) for key, arg in call.kwargs.items()},
        op=group.name if group else None,
        shape=tuple(value.shape) if value is not None else None,
        dtype=_dtype(value.dtype) if value is not None else None,
    )


def _plain(value: Any, call: Call) -> Any:
    """An argument as JSON; see :mod:`hetplanner.workload.program`."""
    if isinstance(value, Ref):
        return {value.kind: value.name}
    if isinstance(value, list | tuple):
        return [_plain(item, call) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": _dtype(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return None
    raise InvalidInput(
        f"{call.where}: '{call.title}' takes {value!r:.60}, which cannot be stored; use real numbers and tensors"
    )


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
