"""An exported graph as a flat list of aten calls without side effects.

What is done on the way: higher-order regions (`no_grad`, disabled `autocast`) are put in place; calls that write into
a tensor become the calls that return a new one; assertions, devices and memory layouts are dropped; calls that nothing
reads are dropped.
"""

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_map

from hetplanner.errors import InvalidInput
from hetplanner.workload.calls import ALLOWED_CALLS, GETITEM

_DROPPED = frozenset(("device", "layout", "pin_memory", "memory_format", "generator"))
_RETURNS_ITS_INPUT = frozenset(("dropout", "feature_dropout", "alpha_dropout"))
"""Calls that may hand back their input itself although their schema does not say so."""


@dataclass(frozen=True, slots=True)
class Ref:
    """What a call reads: kind is node, parameter, buffer or batch."""

    kind: str
    name: str


@dataclass(slots=True)
class Call:
    """One aten call.

    Attributes:
        func: the overload; `operator.getitem` for one of several outputs.
        args, kwargs: with a `Ref` in place of every tensor.
        modules: (path, class) of the modules that were running, outermost first.
        value: fake output.
        where: file and line in the user's code.
        weighted: whether its value depends on a weight.
    """

    name: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    modules: tuple[tuple[str, str], ...]
    value: Any
    where: str
    weighted: bool

    @property
    def title(self) -> str:
        """Overload such as `linear.default`."""
        return title_of(self.func)

    def reads(self) -> list[Ref]:
        """Every tensor it reads, in order, each as often as it is read."""
        leaves, _ = tree_flatten((self.args, self.kwargs), is_leaf=lambda v: isinstance(v, Ref))
        return [leaf for leaf in leaves if isinstance(leaf, Ref)]

    @property
    def is_view(self) -> bool:
        """Whether its output shares its input's memory."""
        return self.func is operator.getitem or any(r.alias_info is not None for r in self.func._schema.returns)


def title_of(func: Any) -> str:
    """Name of a call in a program."""
    return GETITEM if func is operator.getitem else str(func).removeprefix("aten.")


def user_line(stack_trace: str | None) -> str:
    """`file:line (function)` of the innermost frame of a stack trace, '' without one."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', stack_trace or "")
    frames = [f for f in frames if "/torch/" not in f[0]] or frames
    return "{}:{} ({})".format(*frames[-1]) if frames else ""


@dataclass
class _Flattener:
    """Walks a graph and its regions; `env` says what stands for each of its nodes."""

    running: frozenset[str]
    calls: list[Call] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    _root: dict[Ref, Ref] = field(default_factory=dict)
    _separate: set[Ref] = field(default_factory=set)
    """Calls that return several new tensors."""
    _weighted: set[str] = field(default_factory=set)
    _taken: set[str] = field(default_factory=set)

    def walk(self, graph: fx.Graph, env: dict[fx.Node, Any], owner: Any) -> Any:
        for node in graph.nodes:
            if node.op == "output":
                return map_arg(node.args[0], lambda n: env[n])
            if node.op == "get_attr":
                env[node] = owner.get_submodule(node.target) if hasattr(owner, "get_submodule") else None
            elif node.op == "call_function":
                env[node] = self._call(node, env)
        return None

    def _call(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        args: Any
        kwargs: Any
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: env[n])
        name = str(node.target)
        if "wrap_with_set_grad_enabled" in name:
            return self._region(node, args[1], args[2:], detached=not args[0])
        if "wrap_with_autocast" in name:
            if args[2]:
                raise self._refusal(node, "autocast is switched on inside the module", "remove it; give the"
                                    " workload's dtype instead (--dtype bfloat16)")  # fmt: skip
            return self._region(node, args[4], args[5:], detached=False)
        if node.target is operator.getitem and isinstance(args[0], list | tuple):
            return args[0][args[1]]
        if name.startswith(("aten._assert", "aten.sym_constrain")):
            return None
        if node.target is not operator.getitem and not isinstance(node.target, torch._ops.OpOverload):
            raise self._refusal(node, f"'{name}' is no tensor call that can be stored", "use plain torch operations")
        return self._plain(node, env, args, dict(kwargs))

    def _region(self, node: fx.Node, inner: Any, args: Any, *, detached: bool) -> Any:
        places = [n for n in inner.graph.nodes if n.op == "placeholder"]
        result = self.walk(inner.graph, dict(zip(places, args, strict=True)), inner)
        refs = result if isinstance(result, list | tuple) else (result,)
        if detached:
            refs = tuple(self._detach(node, ref) for ref in refs)
        return tuple(refs)

    def _detach(self, node: fx.Node, ref: Any) -> Any:
        if not isinstance(ref, Ref) or ref.name not in self._weighted:
            return ref
        value = next(c.value for c in self.calls if c.name == ref.name)
        return self._append(node, torch.ops.aten.detach.default, (ref,), {}, value)

    def _plain(self, node: fx.Node, env: dict[fx.Node, Any], args: Any, kwargs: dict[str, Any]) -> Any:
        func: Any = node.target
        kwargs = {key: value for key, value in kwargs.items() if key not in _DROPPED}
        if func is not operator.getitem:
            if func.namespace != "aten":
                raise self._refusal(
                    node, f"'{func}' is a custom operator", "only torch's own (aten) are stored; write it with those"
                )
            if func._schema.name == "aten::to":
                return self._cast(node, args, kwargs)
            if func._schema.is_mutable:
                return self._write(node, env, args, kwargs)
        return self._append(node, func, args, kwargs, node.meta.get("val"))

    def _cast(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        dtypes = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, torch.dtype)]
        if not dtypes:
            return args[0]  # to another device only
        return self._append(node, torch.ops.aten.to.dtype, (args[0], dtypes[0]), {}, node.meta["val"])

    def _write(self, node: fx.Node, env: dict[fx.Node, Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """The call that returns what this one writes into its first argument; later readers read that."""
        target, where = args[0], user_line(node.meta.get("stack_trace"))
        if not isinstance(target, Ref) or target.kind in ("parameter", "batch"):
            raise self._refusal(node, f"'{node.target}' writes into a weight or the batch", "make a new tensor instead")
        if target.kind == "buffer":
            self.written.setdefault(target.name, where)
            return target
        self._check_unshared(node, env, target)
        schema = node.target._schema  # type: ignore[union-attr]
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::").rstrip("_"), None)
        func = getattr(packet, schema.overload_name or "default", None)
        if func is None:
            raise self._refusal(node, f"'{node.target}' writes in place", "use the call that returns a new tensor")
        fresh = self._append(node, func, args, kwargs, node.meta["val"])
        for key, ref in env.items():
            if ref == target:
                env[key] = fresh
        return fresh

    def _check_unshared(self, node: fx.Node, env: dict[fx.Node, Any], target: Ref) -> None:
        order = {n: i for i, n in enumerate(node.graph.nodes)}
        root = self._root.get(target, target)
        for other, ref in env.items():
            if isinstance(ref, Ref) and ref != target and self._root.get(ref, ref) == root:
                used_later = any(order[user] > order[node] for user in other.users if user in order)
                if used_later:
                    raise self._refusal(
                        node, f"'{node.target}' writes into a part of a tensor that is read again",
                        "write it without in-place calls (torch.where, torch.cat, masked_fill)",
                    )  # fmt: skip

    def _append(self, node: fx.Node, func: Any, args: Any, kwargs: dict[str, Any], value: Any) -> Ref:
        self._check_value(node, func, value)
        if title_of(func) not in ALLOWED_CALLS:
            raise self._refusal(
                node, f"'{func}' is not among the calls that the runtime performs", "write it with other torch calls"
            )
        name, count = node.name, 1
        while name in self._taken:
            count += 1
            name = f"{node.name}_{count}"
        self._taken.add(name)
        modules = tuple(
            (path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}")
            for path, kind in node.meta.get("nn_module_stack", {}).values()
        )
        call = Call(name, func, tuple(args), kwargs, modules, value, user_line(node.meta.get("stack_trace")), False)
        reads = call.reads()
        call.weighted = any(
            r.kind == "parameter" or r.name in (self._weighted if r.kind == "node" else self.running) for r in reads
        )
        if call.weighted:
            self._weighted.add(name)
        ref = Ref("node", name)
        shares = call.is_view or (func is not operator.getitem and func._schema.name[6:] in _RETURNS_ITS_INPUT)
        if shares and reads:
            self._root[ref] = self._root.get(reads[0], reads[0])
            if func is operator.getitem and reads[0] in self._separate:  # its outputs share nothing
                self._root[ref] = Ref("node", f"{reads[0].name}[{args[1]}]")
        elif func is not operator.getitem and len(func._schema.returns) > 1:
            self._separate.add(ref)
        self.calls.append(call)
        return ref

    def _check_value(self, node: fx.Node, func: Any, value: Any) -> None:
        leaves, _ = tree_flatten(value)
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise self._refusal(
                node, f"'{func}' gives a number that depends on data", "keep it a tensor (no .item(), no len of data)"
            )

    def _refusal(self, node: fx.Node, problem: str, remedy: str) -> InvalidInput:
        where = user_line(node.meta.get("stack_trace"))
        return InvalidInput(f"{where + ': ' if where else ''}{problem}; {remedy}")


def flat_calls(graph: fx.GraphModule, inputs: dict[str, Ref], running: frozenset[str]) -> tuple[list[Call], Ref]:
    """The calls that the first output of an exported graph needs, in order, and that output.

    Args:
        graph: with regions as submodules.
        inputs: by placeholder, what it stands for.
        running: buffers that training moves; what reads them depends on weights.

    Raises:
        InvalidInput: a call that cannot be stored, with the user's line and what to change.
    """
    flattener = _Flattener(running)
    env = {n: inputs[n.name] for n in graph.graph.nodes if n.op == "placeholder"}
    outputs = flattener.walk(graph.graph, env, graph)
    loss = next(ref for ref in tree_flatten(outputs, is_leaf=lambda v: isinstance(v, Ref))[0] if isinstance(ref, Ref))
    kept = list(_needed(flattener.calls, loss))
    for call in kept:
        for ref in call.reads():
            if ref.kind == "buffer" and ref.name in flattener.written:
                raise InvalidInput(
                    f"{flattener.written[ref.name]}: buffer {ref.name} is written in forward and read there;"
                    " only batch norm's running statistics may change, keep other state out of the module"
                )
    return kept, loss


def _needed(calls: list[Call], loss: Ref) -> Iterator[Call]:
    wanted = {loss.name}
    for call in reversed(calls):
        if call.name in wanted:
            wanted.update(ref.name for ref in call.reads() if ref.kind == "node")
    return (call for call in calls if call.name in wanted)


def with_refs(value: Any, replace: Any) -> Any:
    """`value` with every `Ref` in it replaced."""
    return tree_map(lambda v: replace(v) if isinstance(v, Ref) else v, value, is_leaf=lambda v: isinstance(v, Ref))
