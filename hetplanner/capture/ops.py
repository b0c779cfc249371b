"""Calls grouped into the operators of an OP-DAG.

An operator is a run of consecutive calls of one innermost module. Calls that depend on no weight are free: no
operator's. Then:

* one of several outputs, and a view that alone reads its input, goes with the call it reads;
* where something that is no floating-point tensor would cross a boundary, all operators between are one;
* an operator either owns weights or only uses those of one earlier operator (`tied`). Where one would do both, the
  smaller part of its weights is handed on by an operator of its own in front of it (kind `parameter`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hetplanner.capture.calls import Call, Ref, with_refs
from hetplanner.capture.export import Exported
from hetplanner.workload.model import OpKind

MAX_NAME = 110


@dataclass
class Group:
    """The calls of one operator.

    Attributes:
        path: innermost module, without the wrappers of ours.
        modules: (path, class) outermost first.
        owns, borrows: parameters; those it borrows belong to operator `tied`.
    """

    path: str
    modules: tuple[tuple[str, str], ...]
    calls: list[Call] = field(default_factory=list)
    name: str = ""
    owns: list[str] = field(default_factory=list)
    borrows: list[str] = field(default_factory=list)
    tied: "Group | None" = None

    def parameters(self) -> list[str]:
        """Parameters that its calls read, in order of first use."""
        return list(dict.fromkeys(r.name for c in self.calls for r in c.reads() if r.kind == "parameter"))


def group_calls(exported: Exported) -> list[Group]:
    """Operators in topological order, named."""
    groups = _runs(exported.calls, exported.prefix)
    groups = _merged(groups)
    groups = _with_owners(groups, exported)
    _name(groups, exported.loss)
    return groups


def _runs(calls: list[Call], prefix: str) -> list[Group]:
    readers: dict[str, int] = {}
    for call in calls:
        for ref in call.reads():
            readers[ref.name] = readers.get(ref.name, 0) + 1
    groups: list[Group] = []
    home: dict[str, Group] = {}
    for call in calls:
        if not call.weighted:
            continue
        group = _goes_with(call, home, readers)
        if group is None:
            modules = _stripped(call.modules, prefix)
            path = modules[-1][0] if modules else ""
            if not groups or groups[-1].path != path:
                groups.append(Group(path, modules))
            group = groups[-1]
        group.calls.append(call)
        home[call.name] = group
    return groups


def _goes_with(call: Call, home: dict[str, Group], readers: dict[str, int]) -> Group | None:
    reads = call.reads()
    if call.title == "getitem":
        return home.get(reads[0].name)
    if call.is_view and len(reads) == 1 and readers[reads[0].name] == 1 and reads[0].name in home:
        grows = isinstance(call.value, Tensor) and _expands(call)
        return None if grows else home[reads[0].name]
    return None


def _expands(call: Call) -> bool:
    return call.title.split(".")[0] in ("expand", "expand_as", "broadcast_to")


def _stripped(modules: tuple[tuple[str, str], ...], prefix: str) -> tuple[tuple[str, str], ...]:
    """Paths without our wrappers, nor the root."""
    return tuple((path[len(prefix) :], kind) for path, kind in modules if path.startswith(prefix))


def _merged(groups: list[Group]) -> list[Group]:
    """All operators between a producer and a reader of what must not cross a boundary become one."""
    while True:
        span = next(_spans(groups), None)
        if span is None:
            return groups
        first, last = span
        whole = groups[first]
        whole.calls = [call for group in groups[first : last + 1] for call in group.calls]
        common = [m for m in whole.modules if all(m in g.modules for g in groups[first : last + 1])]
        whole.modules, whole.path = tuple(common), common[-1][0] if common else ""
        groups = [*groups[:first], whole, *groups[last + 1 :]]


def _spans(groups: list[Group]) -> Iterator[tuple[int, int]]:
    home = {call.name: i for i, group in enumerate(groups) for call in group.calls}
    values = {call.name: call.value for group in groups for call in group.calls}
    for i, group in enumerate(groups):
        for call in group.calls:
            for ref in call.reads():
                source = home.get(ref.name, i) if ref.kind == "node" else i
                if source != i and not _may_cross(values[ref.name]):
                    yield source, i


def _may_cross(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


# -- weights --------------------------------------------------------------------------------------


def _with_owners(groups: list[Group], exported: Exported) -> list[Group]:
    owner: dict[str, Group] = {}
    result: list[Group] = []
    for group in groups:
        parts: dict[int, list[str]] = {}
        for name in group.parameters():
            parts.setdefault(id(owner.setdefault(name, group)), []).append(name)
        kept = max(parts, key=lambda key: sum(exported.parameters[n].numel() for n in parts[key]), default=id(group))
        for key, names in parts.items():
            if key != kept:
                result.append(_handed_on(group, names, owner, exported))
        names = parts.get(kept, [])
        if kept == id(group):
            group.owns = names
        else:
            group.borrows, group.tied = names, owner[names[0]]
        result.append(group)
    return result


def _handed_on(group: Group, names: list[str], owner: dict[str, Group], exported: Exported) -> Group:
    """An operator that gives out weights as they are; the calls of `group` read them from it."""
    front = Group(f"{group.path}.weights" if group.path else "weights", group.modules)
    replaced: dict[Ref, Ref] = {}
    for name in names:
        title = f"alias_{name.replace('.', '_')}_{len(group.calls)}_{group.calls[0].name}"
        value = exported.parameters[name].detach()
        where, modules = group.calls[0].where, group.calls[0].modules
        call = Call(
            title, torch.ops.aten.alias.default, (Ref("parameter", name),), {}, modules, value, where, weighted=True
        )
        front.calls.append(call)
        exported.calls.insert(exported.calls.index(group.calls[0]), call)
        replaced[Ref("parameter", name)] = Ref("node", title)
        if owner[name] is group:
            owner[name] = front
    if owner[names[0]] is front:
        front.owns = names
    else:
        front.borrows, front.tied = names, owner[names[0]]
    for call in group.calls:
        call.args, call.kwargs = with_refs((call.args, call.kwargs), lambda ref: replaced.get(ref, ref))
    return front


# -- names and kinds ------------------------------------------------------------------------------


def _name(groups: list[Group], loss: Ref) -> None:
    runs: dict[str, int] = {}
    for group in groups:
        runs[group.path] = runs.get(group.path, 0) + 1
    taken: set[str] = set()
    for group in groups:
        principal = main_call(group)
        if any(call.name == loss.name for call in group.calls) and not group.path:
            name = "loss"
        elif runs[group.path] == 1 and group.path:
            name = group.path
        else:
            name = f"{group.path}:{principal}" if group.path else principal
        base, count = name[-MAX_NAME:], 1
        name = base
        while name in taken:
            count += 1
            name = f"{base}.{count}"
        taken.add(name)
        group.name = name


def main_call(group: Group) -> str:
    """Name of the call that an operator is called after: its last that computes."""
    names = [c.title.split(".")[0] for c in group.calls if not c.is_view and c.title != "getitem"]
    return names[-1] if names else group.calls[0].title.split(".")[0]


_KINDS: tuple[tuple[OpKind, tuple[str, ...]], ...] = (
    ("attention", ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention")),
    ("convolution", ("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose2d", "conv_transpose1d")),
    ("embedding", ("embedding", "embedding_bag")),
    ("linear", ("linear", "addmm", "mm")),
    ("norm", ("layer_norm", "batch_norm", "group_norm", "rms_norm", "instance_norm", "rsqrt")),
    ("attention", ("softmax", "_softmax", "matmul", "bmm", "baddbmm")),
    ("pooling", ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "max_pool1d", "avg_pool1d", "max_pool3d",
                 "adaptive_avg_pool1d", "adaptive_max_pool2d", "max_pool2d_with_indices")),
    ("activation", ("relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "hardtanh", "hardswish", "mish",
                    "softplus", "relu6", "hardsigmoid")),
    ("dropout", ("dropout", "feature_dropout", "bernoulli")),
)  # fmt: skip


def kind_of(group: Group, *, is_loss: bool, is_head: bool) -> OpKind:
    """What an operator is, by its most telling call."""
    if is_loss:
        return "loss"
    if is_head:
        return "head"
    titles = {call.title.split(".")[0] for call in group.calls}
    for kind, names in _KINDS:
        if titles & set(names):
            return kind
    return "parameter" if group.owns or group.borrows else "function"


def layers_of(groups: list[Group]) -> list[int | None]:
    """By operator, the index of its layer: of the outermost element of a list of modules that computes itself.

    `h.3` is a layer, since it adds its residual; `stages.1` of a ResNet only calls its own list, so the layers are
    `stages.1.layers.4`, counted through. Elements whose class occurs only once (a classifier's) are no layers.
    """
    computing = {group.path for group in groups}
    blocks = [_block(group, computing) for group in groups]
    classes: dict[str, set[str]] = {}
    for path, kind in filter(None, blocks):
        classes.setdefault(kind, set()).add(path)
    order: dict[str, int] = {}
    return [
        order.setdefault(block[0], len(order)) if block and len(classes[block[1]]) > 1 else None for block in blocks
    ]


def _block(group: Group, computing: set[str]) -> tuple[str, str] | None:
    indexed = [m for m in group.modules if m[0].rpartition(".")[2].split("@")[0].isdigit()]
    return next((m for m in indexed if m[0] in computing), indexed[-1] if indexed else None)
