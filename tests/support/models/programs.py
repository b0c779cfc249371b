"""Captured models written down by hand: programs and their OP-DAGs, without torch.export."""

from math import prod

from hetplanner.workload.model import Op, OpGraph
from hetplanner.workload.program import Buffer, InitCall, Node, Parameter, Program
from hetplanner.workload.workload import Workload

MICRO_BATCH, WIDTH, SIDE, CLASSES = 4, 6, 8, 10
VOCAB = 256


def node(name: str) -> dict[str, str]:
    return {"node": name}


def weight(name: str) -> dict[str, str]:
    return {"parameter": name}


def batch(name: str) -> dict[str, str]:
    return {"batch": name}


def norm_args(x: str, name: str) -> tuple[object, ...]:
    """Of `batch_norm.default`, as training performs it."""
    statistics = [{"buffer": f"{name}.running_mean"}, {"buffer": f"{name}.running_var"}]
    return (node(x), weight(f"{name}.weight"), weight(f"{name}.bias"), *statistics, True, 0.1, 1e-5, True)


def norm_buffers(name: str) -> dict[str, Buffer]:
    return {
        f"{name}.running_mean": Buffer(shape=(WIDTH,), dtype="float32", values=(0.0,) * WIDTH, running=True),
        f"{name}.running_var": Buffer(shape=(WIDTH,), dtype="float32", values=(1.0,) * WIDTH, running=True),
        f"{name}.num_batches_tracked": Buffer(shape=(), dtype="int64", values=(0,), running=True),
    }


def filled(op: str, shape: tuple[int, ...], call: str, *args: float) -> Parameter:
    return Parameter(shape=shape, op=op, init=(InitCall(call=call, args=args),))


def graph_of(program: Program, inputs: dict[str, tuple[str, ...]], kinds: dict[str, str]) -> OpGraph:
    """The OP-DAG of a program: by op, the ops it reads."""
    ops = []
    for name, reads in inputs.items():
        used = {p for p, users in program.users.items() if name in users}
        owners = {program.parameters[p].op for p in used} - {name}
        outputs = [program.shape_of[n] for n in program.outputs.get(name, ())]
        ops.append(
            Op(
                name=name,
                kind=kinds.get(name, "function"),
                layer=len(ops),
                inputs=reads,
                num_params=sum(prod(program.parameters[p].shape) for p in used),
                tied=owners.pop() if owners else None,
                forward_flops=1e6,
                backward_flops=2e6,
                activation_bytes=4 * sum(map(prod, outputs)) // program.micro_batch,
                output_bytes=4 * sum(map(prod, outputs)) // program.micro_batch,
            )
        )
    return OpGraph(ops=tuple(ops))


def residual_workload(*, dropout: float = 0.0, global_batch: int = 32) -> Workload:
    """Convolutions with batch norm; a skip connection from `stem` over `first` and `second` to `join`."""
    image = (MICRO_BATCH, WIDTH, SIDE, SIDE)
    pads: tuple[object, ...] = (None, [1, 1], [1, 1])

    def conv(name: str, op: str, x: dict[str, str]) -> Node:
        args = (x, weight(f"{op}.conv.weight"), *pads)
        return Node(name=name, call="conv2d.default", args=args, op=op, shape=image, dtype="float32")

    def plain(name: str, call: str, op: str, *args: object, shape: tuple[int, ...] = image) -> Node:
        return Node(name=name, call=call, args=args, op=op, shape=shape, dtype="float32")

    nodes = (
        conv("stem_conv", "stem", batch("inputs")),
        plain("stem_norm", "batch_norm.default", "stem", *norm_args("stem_conv", "stem.norm")),
        plain("stem_relu", "relu.default", "stem", node("stem_norm")),
        conv("first_conv", "first", node("stem_relu")),
        plain("first_norm", "batch_norm.default", "first", *norm_args("first_conv", "first.norm")),
        plain("first_relu", "relu.default", "first", node("first_norm")),
        plain("first_drop", "dropout.default", "first", node("first_relu"), dropout, True),
        conv("second_conv", "second", node("first_drop")),
        plain("second_norm", "batch_norm.default", "second", *norm_args("second_conv", "second.norm")),
        plain("sum", "add.Tensor", "join", node("second_norm"), node("stem_relu")),
        plain("join_relu", "relu.default", "join", node("sum")),
        plain("pooled", "mean.dim", "head", node("join_relu"), [2, 3], shape=(MICRO_BATCH, WIDTH)),
        plain("logits", "linear.default", "head", node("pooled"), weight("head.weight"), weight("head.bias"),
              shape=(MICRO_BATCH, CLASSES)),
        plain("total", "cross_entropy_loss.default", "loss", node("logits"), batch("labels"), None, 2, shape=()),
    )  # fmt: skip
    parameters, buffers = {}, {}
    for op in ("stem", "first", "second"):
        inside = 1 if op == "stem" else WIDTH
        parameters[f"{op}.conv.weight"] = filled(op, (WIDTH, inside, 3, 3), "uniform_", -0.4, 0.4)
        parameters[f"{op}.norm.weight"] = filled(op, (WIDTH,), "fill_", 1.0)
        parameters[f"{op}.norm.bias"] = filled(op, (WIDTH,), "zero_")
        buffers |= norm_buffers(f"{op}.norm")
    parameters["head.weight"] = filled("head", (CLASSES, WIDTH), "normal_", 0.0, 0.2)
    parameters["head.bias"] = filled("head", (CLASSES,), "zero_")
    program = Program(
        micro_batch=MICRO_BATCH,
        inputs=(MICRO_BATCH, 1, SIDE, SIDE),
        inputs_dtype="float32",
        labels=(MICRO_BATCH,),
        parameters=parameters,
        buffers=buffers,
        nodes=nodes,
        outputs={"stem": ("stem_relu",), "first": ("first_drop",), "second": ("second_norm",), "join": ("join_relu",),
                 "head": ("logits",), "loss": ()},
        loss="total",
        num_targets=1,
    )  # fmt: skip
    edges = {"stem": (), "first": ("stem",), "second": ("first",), "join": ("second", "stem"), "head": ("join",),
             "loss": ("head",)}  # fmt: skip
    graph = graph_of(program, edges, {"loss": "loss", "head": "head"})
    return Workload(
        name="residual", captured=graph, program=program, global_batch=global_batch, micro_batch=MICRO_BATCH,
        seq_len=1, dtype="float32",
    )  # fmt: skip


def tied_workload(*, global_batch: int = 8) -> Workload:
    """Tokens to logits by a table that the head shares; free positions; the owner of the shared weight has another."""
    B, T, C, V = 2, 6, 8, VOCAB
    x = (B, T, C)

    def plain(name: str, call: str, op: str | None, *args: object, shape: tuple[int, ...] = x, **more: object) -> Node:
        return Node(**{"name": name, "call": call, "args": args, "op": op, "shape": shape, "dtype": "float32"} | more)

    nodes = (
        plain("places", "arange.default", None, T, shape=(T,), dtype="int64"),
        plain("turn", "sin.default", None, node("places"), shape=(T,)),
        plain("column", "unsqueeze.default", None, node("turn"), 1, shape=(T, 1)),
        plain("known", "ne.Scalar", None, batch("inputs"), 0, shape=(B, T), dtype="bool"),
        plain("mask", "unsqueeze.default", None, node("known"), 2, shape=(B, T, 1), dtype="bool"),
        plain("rows", "embedding.default", "table", weight("table.weight"), batch("inputs")),
        plain("shifted", "add.Tensor", "table", node("rows"), weight("table.shift")),
        plain("wide", "linear.default", "body", node("shifted"), weight("body.weight")),
        plain("turned", "mul.Tensor", "body", node("wide"), node("column")),
        plain("kept", "where.ScalarOther", "body", node("mask"), node("turned"), 0.0),
        plain("parts", "split.Tensor", "body", node("kept"), C // 2, 2, shape=None, dtype=None),
        plain("left", "getitem", "body", node("parts"), 0, shape=(B, T, C // 2)),
        plain("right", "getitem", "body", node("parts"), 1, shape=(B, T, C // 2)),
        plain("swapped", "cat.default", "join", [node("right"), node("left")], -1),
        plain("column_again", "add.Tensor", "join", node("swapped"), node("column")),
        plain("logits", "linear.default", "head", node("column_again"), weight("table.weight"), shape=(B, T, V)),
        plain("flat", "view.default", "loss", node("logits"), [B * T, V], shape=(B * T, V)),
        plain("targets", "view.default", None, batch("labels"), [B * T], shape=(B * T,), dtype="int64"),
        plain("total", "cross_entropy_loss.default", "loss", node("flat"), node("targets"), None, 2, shape=()),
    )
    program = Program(
        micro_batch=B,
        inputs=(B, T),
        inputs_dtype="int64",
        labels=(B, T),
        parameters={
            "table.weight": filled("table", (V, C), "normal_", 0.0, 0.5),
            "table.shift": filled("table", (C,), "zero_"),
            "body.weight": filled("body", (C, C), "normal_", 0.0, 0.5),
        },
        nodes=nodes,
        outputs={"table": ("shifted",), "body": ("left", "right"), "join": ("column_again",), "head": ("logits",),
                 "loss": ()},
        loss="total",
        num_targets=T,
    )  # fmt: skip
    edges = {"table": (), "body": ("table",), "join": ("body",), "head": ("join",), "loss": ("head",)}
    graph = graph_of(program, edges, {"loss": "loss", "head": "head", "table": "embedding"})
    return Workload(
        name="tied", captured=graph, program=program, global_batch=global_batch, micro_batch=B, seq_len=T,
        dtype="float32",
    )  # fmt: skip
