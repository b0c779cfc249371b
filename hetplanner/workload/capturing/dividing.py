"""How members of a group divide the layers of a captured model: tensor parallelism, found in its calls.

Each product with a weight is first taken to widen: its weight is divided by rows. Its value is then divided, and so is
what is computed from it, see :mod:`hetplanner.workload.capturing.layouts`. A product of a divided value narrows: its
weight is divided by columns, and the members' results are added up. Where a call would compute with elements of several
members, the weights behind them are made whole, and the search begins again. Large tables are divided by words; the
logits of a divided head are gathered.

What members' results add up to is divided by tokens, where their number allows it (sequence parallelism), and so is
what follows. Tokens are collected in front of a product, and of a call that computes with several of them. What every
member has enters divided calls through a step that adds up gradients. All else is computed by every member.

Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053), section 3; Korthikanti et al. 2022 (arXiv 2205.05198),
section 4.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.workload.capturing.division import Division, Exchange, Step
from hetplanner.workload.capturing.layouts import MAX_BLOCKS, Divided, Layout, MixedError, divided, is_even, local_shape
from hetplanner.workload.capturing.products import MATRIX_NDIM, Product, products_of, weights_behind_calls
from hetplanner.workload.program import FLOAT_TYPES, Node, Program, Shape, references
from hetplanner.workload.task import IGNORED

TOKENS = frozenset[str]()
"""Sources of a value that is divided by tokens."""
LARGE_SHARE = 0.02
"""Of a model's weights: a table or head of at least so much is divided by words."""
BY_SAMPLE_NDIM = 3
LOSS, SUMMED = "cross_entropy_loss.default", 2
"""A cross-entropy, and its `reduction` where it is a sum."""
MAX_PASSES = 200
"""Walks through a program; one that needs more is not divided. Those of transformers need 2 to 4."""
_NUMBER = re.compile(r"[0-9]+")


def divide(program: Program, degree: int) -> Division:
    """A captured model for so many members.

    Raises:
        InvalidInput: a call has arguments that it does not take.
    """
    choices, setting = _Choices(), _Setting.of(program, degree)
    for _ in range(MAX_PASSES):
        found = _Pass(setting, choices)
        found.run()
        if not found.is_changed:
            return found.division()
    return Division(program)


@dataclass
class _Choices:
    """What earlier passes have found of products with weights, by node."""

    whole: set[str] = field(default_factory=set)
    gathered: set[str] = field(default_factory=set)
    blocks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    read_whole: set[str] = field(default_factory=set)
    entered: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Setting:
    """What all passes share."""

    program: Program
    degree: int
    products: dict[str, Product]
    behind: dict[str, str]
    nodes: dict[str, Node]
    large: float

    @staticmethod
    def of(program: Program, degree: int) -> _Setting:
        try:
            products, behind = products_of(program), weights_behind_calls(program)
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidInput(f"program.nodes: a product has arguments that it does not take: {error}") from None
        large = LARGE_SHARE * sum(prod(parameter.shape) for parameter in program.parameters.values())
        return _Setting(program, degree, products, behind, {node.name: node for node in program.nodes}, large)


class _Pass:
    """One walk through the program with the choices so far."""

    def __init__(self, setting: _Setting, choices: _Choices) -> None:
        self.program, self.degree, self.choices = setting.program, setting.degree, choices
        self._large, self._by_name, self._products = setting.large, setting.nodes, setting.products
        self._behind = setting.behind
        self.is_changed = False
        self._nodes: list[Node] = []
        self._steps: dict[str, Step] = {}
        self._weights: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._divided_by: dict[str, str] = {}
        self._layouts: dict[str, Layout] = {}
        self._several: dict[str, tuple[Layout, ...]] = {}
        self._read_whole, self._partial = set[str](), set[str]()
        self._collected = set[str]()
        self._op: str | None = None
        self._mixing = set[str]()

    def run(self) -> None:
        """Adds every call as a member performs it."""
        for node in self.program.nodes:
            try:
                self._add(node)
            except MixedError as error:
                self.is_changed = True
                if self._takes_other_blocks(error):
                    return
                self._mixed(node, error)
            except (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
                text = f"program.nodes ({node.name:.60}): {node.call} has arguments that it does not take"
                raise InvalidInput(f"{text}: {error}") from error
        if read := (self._read_whole | self._partial) & self._weights.keys():
            self.is_changed = True
            self.choices.read_whole |= read
        if mixed := self._read_whole & self._partial:
            self.is_changed = True
            self.choices.entered |= mixed

    def division(self) -> Division:
        """What was found."""
        read = {name for node in self._nodes for kind, name in references(node) if kind == "node"}
        is_used = {name: name in read or name in self._by_name for name in self._steps}
        steps = {name: step for name, step in self._steps.items() if is_used[name]}
        nodes = tuple(node for node in self._nodes if is_used.get(node.name, True))
        program, partial = self.program.model_copy(update={"nodes": nodes}), frozenset(self._partial)
        return Division(program, steps, self._weights, self._layouts, partial)

    # -- values, as rules see them ----------------------------------------------------------------

    def layout(self, value: Any) -> Layout | None:
        """See `layouts.Values`."""
        name = value.get("node", "") if isinstance(value, dict) else ""
        found = self._layouts.get(name)
        return None if found is None or name in self._collected or found.sources & self._mixing else found

    def shape(self, value: Any) -> Shape | None:
        """See `layouts.Values`."""
        if not isinstance(value, dict):
            return None
        ((kind, name),) = value.items()
        if kind == "node":
            return self.program.shape_of.get(name)
        if kind == "parameter":
            return self.program.parameters[name].shape
        if kind == "buffer":
            return self.program.buffers[name].shape
        return {"inputs": self.program.inputs, "labels": self.program.labels}.get(name) if kind == "batch" else None

    def entering(self, value: Any) -> Any:
        """See `layouts.Values`."""
        if (tokens := self._tokens_of(value)) is not None:
            return self._converted(value, "collected", self._collecting("collect", value, tokens))
        if not self._has_gradient(value):
            return value
        name = value.get("parameter")
        if name is not None and name not in self.choices.entered:
            self._partial.add(name)
            return value
        return self._converted(value, "enter", Step("enter", self.shape(value) or (), self._op))

    def own_part(self, value: Any, axis: int, blocks: tuple[int, ...]) -> Any:
        """See `layouts.Values`."""
        has_gradient, shape = self._has_gradient(value), self.shape(value) or ()
        if self._tokens_of(value) is not None:
            value, has_gradient = self.entering(value), False  # what collects the tokens adds up their gradients
        elif "parameter" in value:
            self._read_whole.add(value["parameter"])
        step = Step("own part", shape, self._op, axis, blocks, has_gradient)
        return self._converted(value, f"part_{axis}_{len(blocks)}_{blocks[0]}_{blocks[-1]}", step)

    def _has_gradient(self, value: Any) -> bool:
        ((kind, name),) = value.items()
        if kind == "parameter":
            return name not in self.program.frozen
        node = self._by_name.get(name) if kind == "node" else None
        return node is not None and node.op is not None and node.dtype in FLOAT_TYPES

    def _tokens_of(self, value: Any) -> Layout | None:
        """The layout of a value that is divided by tokens."""
        found = self._layouts.get(value.get("node", "")) if isinstance(value, dict) else None
        return found if found is not None and found.sources == TOKENS else None

    def _collecting(self, kind: Exchange, value: Any, layout: Layout) -> Step:
        return Step(kind, self.shape(value) or (), self._op, layout.axis, layout.blocks, self._has_gradient(value))

    def _by_tokens(self, shape: Shape) -> Layout | None:
        """How members divide the tokens of a value."""
        samples, axes = self.program.micro_batch, len(shape)
        if samples > MAX_BLOCKS:
            return None
        if axes == BY_SAMPLE_NDIM and shape[0] == samples and shape[1] % self.degree == 0:
            return Layout(1, (shape[1],), TOKENS)
        if axes == BY_SAMPLE_NDIM - 1 and shape[0] % (samples * self.degree) == 0 and shape[0] > samples:
            return Layout(0, (shape[0] // samples,) * samples, TOKENS)
        return None

    def _converted(self, value: Any, suffix: str, step: Step) -> Any:
        """A value behind a step, which all its users share."""
        ((kind, name),) = value.items()
        new = self._new_name(name if kind == "node" else f"{kind}:{name}", suffix)
        if new not in self._steps:
            self._steps[new] = step
            self._nodes.append(Node.model_construct(name=new, call="alias.default", args=(value,)))
        return {"node": new}

    def _new_name(self, name: str, suffix: str) -> str:
        """A name that no call of the program has."""
        wanted = f"{name}__{suffix}"
        return next(new for i in count() if (new := wanted + "_" * i) not in self._by_name)

    # -- calls ------------------------------------------------------------------------------------

    def _add(self, node: Node) -> None:
        self._op, self._collected = node.op, set[str]()
        try:
            self._add_call(node)
        except MixedError:
            read = {name for kind, name in references(node) if kind == "node" and self._tokens_of({kind: name})}
            if read <= self._collected:
                raise
            self._collected = read
            self._add_call(node)
        finally:
            self._collected = set()

    def _add_call(self, node: Node) -> None:
        product = self._products.get(node.name)
        if product is not None and self._add_product(node, product):
            return
        if node.call == "embedding.default" and self._add_table(node):
            return
        if node.call == LOSS and self._add_loss(node):
            return
        if node.call == "getitem":
            self._add_item(node)
        elif not self._reads_divided(node):
            self._add_whole(node)
        else:
            self._add_divided(node, divided(node, self))

    def _add_whole(self, node: Node) -> None:
        """A call that every member performs."""
        self._nodes.append(node.model_copy(update={"args": self._whole(node.args), "kwargs": self._whole(node.kwargs)}))
        if node.name not in self._behind:
            self._read_whole |= {name for kind, name in references(node) if kind == "parameter"}
            self._read_whole |= {
                self._behind[name] for kind, name in references(node) if kind == "node" and name in self._behind
            }

    def _add_divided(self, node: Node, found: Divided) -> None:
        for layout in found.layouts:
            may_be_uneven = layout.sources and all(self._is_large(source) for source in layout.sources)
            if node.name == self.program.loss or not (may_be_uneven or is_even(layout, self.degree)):
                raise MixedError(layout.sources)
        if node.shape is None:
            self._several[node.name] = found.layouts
            shape = None
        else:
            self._layouts[node.name] = found.layouts[0]
            shape = local_shape(node.shape, found.layouts[0], self.degree)
        changes = {"call": found.call or node.call, "args": found.args, "kwargs": found.kwargs, "shape": shape}
        self._nodes.append(node.model_copy(update=changes))

    def _reads_divided(self, node: Node) -> bool:
        names = [name for kind, name in references(node) if kind == "node"]
        return any(name in self._several or self.layout({"node": name}) is not None for name in names)

    def _whole(self, value: Any) -> Any:
        """Arguments of a call that every member performs: tokens are collected."""
        if isinstance(value, list | tuple):
            return type(value)(self._whole(part) for part in value)
        if isinstance(value, dict) and (tokens := self._tokens_of(value)) is not None:
            return self._converted(value, "whole", self._collecting("whole", value, tokens))
        if isinstance(value, dict) and len(value) != 1:
            return {name: self._whole(part) for name, part in value.items()}
        return value

    def _add_item(self, node: Node) -> None:
        layouts = self._several.get(node.args[0].get("node", ""))
        if layouts is not None:
            layout = self._layouts[node.name] = layouts[node.args[1]]
            node = node.model_copy(update={"shape": local_shape(node.shape or (), layout, self.degree)})
        self._nodes.append(node)

    def _add_product(self, node: Node, product: Product) -> bool:
        """A product with a weight; whether it is divided."""
        value, shape = node.args[product.value], self.program.parameters[product.name].shape
        if (tokens := self._tokens_of(value)) is not None:
            if node.name in self.choices.whole and tokens.axis != product.contracted and node.call != "bmm.default":
                return self._add_on_tokens(node, product, tokens)
            self._collected.add(value["node"])
        layout = self.layout(value)
        bias = None if product.bias is None else node.args[product.bias]
        if layout is None:
            return self._add_widening(node, product, bias)
        if layout.axis != product.contracted or shape[product.columns] != layout.size:
            raise MixedError(layout.sources)
        self._divide(product.name, product.columns, layout.blocks, node, layout.sources)
        part = self._add_part(node, product, value, None, None)
        out = self._by_tokens(node.shape or ())
        if bias is not None and out is not None:
            bias = self.entering(bias)
        elif isinstance(bias, dict) and "parameter" in bias:
            self._read_whole.add(bias["parameter"])
        step = Step("sum", node.shape or (), node.op, out=out)
        self._add_step(node, (part,) if bias is None else (part, bias), step)
        return True

    def _add_on_tokens(self, node: Node, product: Product, layout: Layout) -> bool:
        """A product of a member's tokens with a whole weight."""
        args = list(node.args)
        if product.bias is not None and len(args) > product.bias:
            args[product.bias] = self.entering(args[product.bias])
        if product.name in self.choices.entered:
            args[product.weight] = self.entering(args[product.weight])
        elif product.name not in self.program.frozen:
            self._partial.add(product.name)
        self._add_divided(node, Divided((layout,), tuple(args), node.kwargs))
        return True

    def _add_widening(self, node: Node, product: Product, bias: Any) -> bool:
        rows = self._rows_of(node.name)
        is_gathered = node.name in self.choices.gathered
        if node.name in self.choices.whole or rows < self.degree:
            return False
        sources = frozenset((node.name,))
        blocks = self.choices.blocks.get(node.name, (rows,))
        if not is_gathered and any(block % self.degree for block in blocks) and not self._is_large(node.name):
            raise MixedError(sources)
        self._divide(product.name, product.rows, blocks, node, sources)
        if isinstance(bias, dict) and "parameter" in bias:
            self._divide(bias["parameter"], 0, blocks, node, sources)
        elif bias is not None:
            bias = self.own_part(bias, 0, blocks)
        value = self.entering(node.args[product.value])
        if is_gathered:
            part = self._add_part(node, product, value, bias, None)
            self._add_step(node, (part,), Step("gather", node.shape or (), node.op, product.out, blocks))
        else:
            self._add_part(node, product, value, bias, Layout(product.out, blocks, sources))
        return True

    def _add_part(self, node: Node, product: Product, value: Any, bias: Any, layout: Layout | None) -> Any:
        """A member's product; under another name where a step follows."""
        new = node.name if layout is not None else self._new_name(node.name, "part")
        args = {product.value: value, product.weight: node.args[product.weight]}
        call = "mm.default" if bias is None and node.call == "addmm.default" else node.call
        if bias is not None and product.bias is not None:
            args[product.bias] = bias
        changes: dict[str, Any] = {"name": new, "call": call, "args": tuple(args[place] for place in sorted(args))}
        if layout is not None:
            self._layouts[node.name] = layout
            changes["shape"] = local_shape(node.shape or (), layout, self.degree)
        self._nodes.append(node.model_copy(update=changes))
        return {"node": new}

    def _add_step(self, node: Node, args: tuple[Any, ...], step: Step) -> None:
        self._steps[node.name] = step
        if step.out is not None:
            self._layouts[node.name] = step.out
        shape = local_shape(node.shape or (), step.out, self.degree)
        changes = {"call": "alias.default", "args": args, "kwargs": {}, "shape": shape}
        self._nodes.append(node.model_copy(update=changes))

    def _add_table(self, node: Node) -> bool:
        """Rows of a large table; whether it is divided."""
        weight, index, *padding = node.args
        name = weight.get("parameter") if isinstance(weight, dict) else None
        is_plain = not node.kwargs and not any(padding[1:])
        if name is None or node.name in self.choices.whole or self.layout(index) is not None or not is_plain:
            return False
        shape = self.program.parameters[name].shape
        if prod(shape) < self._large or shape[0] < self.degree:
            return False
        self._divide(name, 0, (shape[0],), node, frozenset((node.name,)))
        self._add_step(
            node,
            (weight, self._whole(index), *padding[:1]),
            Step("rows", node.shape or (), node.op, 0, (shape[0],), out=self._by_tokens(node.shape or ())),
        )
        return True

    def _add_loss(self, node: Node) -> bool:
        """A cross-entropy; whether it is one of divided logits."""
        logits, targets, *more = node.args
        layout, shape = self.layout(logits), self.shape(logits) or ()
        is_known = more in ([None, SUMMED], [None, SUMMED, IGNORED]) and not node.kwargs and not self.layout(targets)
        if layout is None or not is_known or len(shape) != MATRIX_NDIM or (layout.axis, len(layout.blocks)) != (1, 1):
            return False
        self._add_step(node, (logits, self._whole(targets)), Step("loss", shape, node.op, 1, layout.blocks))
        return True

    def _divide(self, name: str, axis: int, blocks: tuple[int, ...], node: Node, sources: frozenset[str]) -> None:
        """Divides a weight the same way for all its users."""
        other = self._divided_by.get(name)
        if name in self.choices.read_whole:
            raise MixedError(sources)
        if other is not None and self._weights[name] != (axis, blocks):
            raise MixedError(sources | {other})
        self._weights[name], self._divided_by[name] = (axis, blocks), node.name

    def _takes_other_blocks(self, error: MixedError) -> bool:
        """Whether the weights behind a call can be divided into other blocks; those of other layers likewise."""
        if (
            not error.blocks
            or not error.sources
            or any(
                source in self.choices.blocks or self._rows_of(source) != sum(error.blocks) for source in error.sources
            )
        ):
            return False
        names = {_NUMBER.sub("#", self._products[source].name) for source in error.sources}
        for node, product in self._products.items():
            if _NUMBER.sub("#", product.name) in names and self._rows_of(node) == sum(error.blocks):
                self.choices.blocks.setdefault(node, error.blocks)
        return True

    def _mixed(self, node: Node, error: MixedError) -> None:
        """Remembers for the next pass what this call cannot do."""
        sources = error.sources or {node.name}
        self._mixing |= sources  # what is computed from them counts as whole for the rest of this pass
        for source in sources:
            self.choices.blocks.pop(source, None)
            if self._is_large(source) and source not in self.choices.gathered:
                self.choices.gathered.add(source)
            else:
                self.choices.gathered.discard(source)
                self.choices.whole.add(source)
        self._layouts.pop(node.name, None)
        self._add_whole(node)

    def _rows_of(self, source: str) -> int:
        product = self._products.get(source)
        return self.program.parameters[product.name].shape[product.rows] if product is not None else 0

    def _is_large(self, source: str) -> bool:
        """Whether a product's value is gathered where it cannot stay divided."""
        product = self._products.get(source)
        if product is None:
            return False
        shape = self.program.parameters[product.name].shape
        return prod(shape) >= self._large and shape[product.rows] > 2 * shape[product.columns]
