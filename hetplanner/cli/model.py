"""hetplanner workload show."""

from typing import Annotated

import typer

from hetplanner.cli.output import AsJson, console, print_json, table
from hetplanner.units import short_bytes

app = typer.Typer(no_args_is_help=True, help="Look at models: operators, parameters, FLOPs, bytes.")

Model = Annotated[
    str, typer.Argument(help="A preset (tiny-gpt, gpt2, gpt3-xl, llama-8b …) or a Hugging Face config.json.")
]
Layers = Annotated[int | None, typer.Option("--layers", help="Layers instead of the preset's.")]
GlobalBatch = Annotated[int | None, typer.Option("--global-batch", help="Sequences in one step.")]
MicroBatch = Annotated[int | None, typer.Option("--micro-batch", help="Sequences in one micro-batch.")]
SeqLen = Annotated[int | None, typer.Option("--seq-len", help="Tokens in one sequence.")]
Precision = Annotated[str | None, typer.Option("--dtype", help="float32, bfloat16 or float16.")]


@app.command()
def show(
    model: Model,
    layers: Layers = None,
    global_batch: GlobalBatch = None,
    micro_batch: MicroBatch = None,
    seq_len: SeqLen = None,
    dtype: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Print a model's operators with what each computes, keeps and sends, per sample."""
    from hetplanner.workload.load import load_workload

    workload = load_workload(
        model, layers=layers, global_batch=global_batch, micro_batch=micro_batch, seq_len=seq_len, dtype=dtype
    )
    graph = workload.graph
    if as_json:
        data = workload.model_dump(mode="json", exclude_none=True)
        totals = {
            "num_params": graph.num_params,
            "num_layers": graph.num_layers,
            "forward_flops": sum(op.forward_flops for op in graph.ops),
            "backward_flops": sum(op.backward_flops for op in graph.ops),
        }
        print_json(data | totals | {"ops": [op.model_dump(mode="json", exclude_none=True) for op in graph.ops]})
        return
    console.print(
        f"[bold]{workload.name}[/bold]  {graph.num_params:,} parameters, {graph.num_layers} layers, {workload.dtype};"
        f" a step is {workload.global_batch} × {workload.seq_len} tokens in {workload.num_micro_batches} micro-batches"
    )
    columns = ("parameters", "forward", "backward", "kept", "sent")
    ops = table("Operators, per sample", "op", "kind", *columns, right=columns)
    for op in graph.ops:
        ops.add_row(
            op.name + (f" (tied to {op.tied})" if op.tied else ""),
            op.kind,
            f"{op.num_params:,}",
            f"{op.forward_flops / 1e9:.3g} GFLOP",
            f"{op.backward_flops / 1e9:.3g} GFLOP",
            short_bytes(op.activation_bytes),
            short_bytes(op.output_bytes),
        )
    console.print(ops)
