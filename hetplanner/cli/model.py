"""hetplanner workload show|presets|capture|tokenize."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetplanner.cli.output import AsJson, bold, console, notices, print_json, table
from hetplanner.errors import InvalidInput
from hetplanner.units import short_bytes
from hetplanner.workload.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from hetplanner.workload.capturing.capture import OnProgress
    from hetplanner.workload.model import Op
    from hetplanner.workload.workload import Workload

SAY_EVERY_S = 5.0

app = typer.Typer(no_args_is_help=True, help="Look at models and capture them: operators, parameters, FLOPs, bytes.")

OptionalModel = Annotated[
    str | None,
    typer.Argument(help="A preset (see hetplanner workload presets), a workload file or a Hugging Face config.json."),
]
ModelCode = Annotated[
    str | None,
    typer.Option(
        "--model-code",
        metavar="PACKAGE.MODULE:FACTORY",
        help="Instead of MODEL: your own function that returns (module, example inputs); it is run in a process of its"
        " own, in this folder.",
    ),
]
Layers = Annotated[int | None, typer.Option("--layers", help="Layers instead of the preset's.")]
GlobalBatch = Annotated[int | None, typer.Option("--global-batch", help="Samples in one step.")]
MicroBatch = Annotated[int | None, typer.Option("--micro-batch", help="Samples in one micro-batch.")]
SeqLen = Annotated[int | None, typer.Option("--seq-len", help="Tokens in one sequence.")]
BoundaryLayers = Annotated[
    str | None,
    typer.Option(
        "--boundary-layers",
        metavar="KIND:FACTOR[:EVERY]",
        help="Compression-aware layers behind every layer or every EVERY-th (bottleneck or maxout, by 2 or 4): a stage"
        " that ends there sends a FACTOR-th.",
    ),
]
SharedLayers = Annotated[
    int | None, typer.Option("--shared-layers", help="So many consecutive layers share one set of weights.")
]
Precision = Annotated[str | None, typer.Option("--dtype", help="float32, tf32, bfloat16 or float16.")]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        help=f"The optimizer; its states count in the memory: {', '.join(OPTIMIZERS)}; default adamw.",
    ),
]
AdapterOption = Annotated[
    str | None,
    typer.Option(
        "--adapters",
        metavar="RANK[:ALPHA[:TARGET,TARGET]]",
        help="Train low-rank adapters (LoRA) alone, all other weights are frozen. Alpha is twice the rank if not given,"
        " targets are PEFT's: c_attn (GPT-2), q_proj and v_proj (Llama).",
    ),
]
FreezeLayers = Annotated[
    int | None, typer.Option("--freeze-layers", help="Freeze the embedding and so many layers from the front.", min=0)
]

CaptureTimeout = Annotated[
    float | None,
    typer.Option("--capture-timeout", metavar="SECONDS", min=1.0, help="Give a capture up after so long (120)."),
]
MaskToken = Annotated[
    int | None,
    typer.Option(
        "--mask-token",
        metavar="ID",
        help="The mask token of a bidirectional model; default: that of the tokenizer.json beside the config.",
    ),
]
LearnsPairs = Annotated[
    bool,
    typer.Option(
        "--pairs",
        help="An encoder-decoder model learns pairs: the prompt column of a table is the source, the answer column the"
        " target.",
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Capture the config again although the same was captured before and kept.")
]

CapturedAdapters = Annotated[
    str | None,
    typer.Option(
        "--adapters",
        metavar="RANK[:ALPHA[:TARGET,...]]",
        help="Add low-rank adapters (LoRA, by PEFT) to linear layers and freeze all else. Default targets: PEFT's.",
    ),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(
        "--freeze", metavar="PATTERN", help="Freeze the parameters of such names, such as 'model.embed*'; repeatable."
    ),
]


def chosen_workload(
    model: str | None,
    model_code: str | None,
    *,
    micro_batch: int | None,
    global_batch: int | None,
    fresh: bool = False,
    capture_timeout: float | None = None,
    **overrides: Any,
) -> "Workload":
    """The workload of MODEL or of `--model-code`, of which exactly one is given. Raises InvalidInput."""
    from hetplanner.workload.capturing.capture import CAPTURE_TIMEOUT_S, capture_model_code
    from hetplanner.workload.load import load_workload
    from hetplanner.workload.presets import changed_workload

    if (model is None) == (model_code is None):
        given = "neither" if model is None else "both"
        raise InvalidInput(f"exactly one of MODEL and --model-code must be given, got {given}")
    timeout_s, show = capture_timeout or CAPTURE_TIMEOUT_S, capture_progress()
    if model_code is not None:
        workload = capture_model_code(
            model_code, micro_batch=micro_batch, global_batch=global_batch, timeout_s=timeout_s, on_progress=show
        )
        return changed_workload(workload, "--model-code", **overrides)
    assert model is not None
    return load_workload(
        model,
        micro_batch=micro_batch,
        global_batch=global_batch,
        fresh=fresh,
        capture_timeout_s=timeout_s,
        on_progress=show,
        on_kept=say_kept,
        **overrides,
    )


def capture_progress() -> "OnProgress":
    """What tells on stderr how far a capture is, a line every few seconds."""
    due_s = SAY_EVERY_S

    def show(spent_s: float, doing: str) -> None:
        nonlocal due_s
        if spent_s >= due_s:
            due_s = spent_s + SAY_EVERY_S
            notices.print(f"capturing, {spent_s:.0f} s: {doing} (Ctrl-C ends it)")

    return show


def say_kept() -> None:
    """Tells on stderr that nothing was captured now."""
    notices.print("kept from an earlier capture (workload capture --fresh captures again)")


@app.command()
def show(
    model: OptionalModel = None,
    model_code: ModelCode = None,
    layers: Layers = None,
    global_batch: GlobalBatch = None,
    micro_batch: MicroBatch = None,
    seq_len: SeqLen = None,
    dtype: Precision = None,
    boundary_layers: BoundaryLayers = None,
    shared_layers: SharedLayers = None,
    adapters: AdapterOption = None,
    freeze_layers: FreezeLayers = None,
    capture_timeout: CaptureTimeout = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.html", help="Also draw the graph into this page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a model's operators with what each reads, computes, keeps and sends, per sample."""
    from hetplanner.schema import check_writable

    if plot is not None:
        check_writable(plot)
    workload = chosen_workload(
        model,
        model_code,
        layers=layers,
        global_batch=global_batch,
        micro_batch=micro_batch,
        seq_len=seq_len,
        dtype=dtype,
        boundary_layers=boundary_layers,
        shared_layers=shared_layers,
        adapters=adapters,
        freeze_layers=freeze_layers,
        capture_timeout=capture_timeout,
    )
    if plot is not None:
        from hetplanner.plots import write_dag

        write_dag(workload, plot)
    if as_json:
        print_json(_shown(workload))
    else:
        _print(workload)
        if plot is not None:
            console.print(f"graph drawn in {plot}")


@app.command()
def presets(as_json: AsJson = False) -> None:
    """List the models that are known by name, with the batch and number format that they are trained with."""
    from hetplanner.workload.presets import preset, preset_names

    workloads = [preset(name) for name in preset_names()]
    if as_json:
        fields = {"name", "global_batch", "micro_batch", "seq_len", "dtype"}
        rows = (
            w.model_dump(mode="json", include=fields) | _totals(w) | {"reads_tokens": w.reads_tokens} for w in workloads
        )
        print_json(list(rows))
        return
    right = ("parameters", "layers", "global batch", "micro-batch")
    shown = table("Presets", "name", *right, "a sample", "dtype", right=right)
    for w in workloads:
        counts = (f"{w.graph.num_params:,}", w.graph.num_layers, w.global_batch, w.micro_batch)
        shown.add_row(w.name, *map(str, counts), _sample(w), w.dtype)
    console.print(shown)
    console.print(
        "options such as --layers, --seq-len and --global-batch change a preset; see: hetplanner workload show"
    )


def _sample(workload: "Workload") -> str:
    return f"{workload.seq_len} tokens" if workload.reads_tokens else "an image"


@app.command()
def tokenize(
    text: Annotated[
        Path,
        typer.Argument(help="A text file or a folder of them; or a table: .jsonl, .parquet, or a saved data set."),
    ],
    model: Annotated[Path, typer.Argument(help="A Hugging Face model folder, with its tokenizer.json.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="New folder for the ids, to be given as --data.")],
    column: Annotated[str | None, typer.Option("--column", help="Of a table: the column of texts (text).")] = None,
    prompt_column: Annotated[
        str | None, typer.Option("--prompt-column", help="Column of the prompt in a table of instructions.")
    ] = None,
    answer_column: Annotated[
        str | None, typer.Option("--answer-column", help="Column of the answer. Training learns the answer alone.")
    ] = None,
    messages_column: Annotated[
        str | None,
        typer.Option(
            "--messages-column",
            help="Of a table of chats: lists of role and content, for the model's chat template; answers of the"
            " assistant alone are learnt (messages).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write texts, instructions or chats as the ids of a model's own tokenizer."""
    from hetplanner.data.tokenizing.records import Columns
    from hetplanner.data.tokenizing.writing import Written, write_tokens

    said_s = time.monotonic()

    def advance(written: Written) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= SAY_EVERY_S:
            said_s = time.monotonic()
            notices.print(f"{written.texts:,} texts, {sum(written.tokens.values()):,} tokens (Ctrl-C ends it)")

    columns = Columns(column, prompt_column, answer_column, messages_column)
    try:
        written = write_tokens(text, model, out, advance, columns)
    except OSError as error:
        raise InvalidInput(f"{out}: cannot be written: {error.strerror or error}") from None
    if as_json:
        answers = {} if written.answers is None else {"answers": written.answers}
        counted = {"vocab": written.vocab, "texts": written.texts, "tokens": written.tokens}
        print_json({"folder": str(out)} | counted | answers)
        return
    counts = ", ".join(f"{count:,} in {name}" for name, count in written.tokens.items())
    learnt = "" if written.answers is None else f"; {written.answers:,} tokens are answers, which alone are learnt"
    console.print(
        f"{written.texts:,} texts, {written.vocab:,} words: {counts} of {out}{learnt}; train on them with --data {out}"
    )


@app.command()
def capture(
    config: Annotated[
        Path | None, typer.Argument(help="A Hugging Face config.json, or the folder that holds it.")
    ] = None,
    model_code: ModelCode = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the workload file here.")] = None,
    micro_batch: MicroBatch = None,
    global_batch: GlobalBatch = None,
    seq_len: SeqLen = None,
    adapters: CapturedAdapters = None,
    freeze: Freeze = None,
    mask_token: MaskToken = None,
    pairs: LearnsPairs = False,
    fresh: Fresh = False,
    capture_timeout: CaptureTimeout = None,
    as_json: AsJson = False,
) -> None:
    """Capture a model without its weights into a workload file: any machine can plan and train it without the code."""
    from hetplanner.schema import check_writable
    from hetplanner.workload.capturing.capture import CAPTURE_TIMEOUT_S, capture_config, capture_model_code
    from hetplanner.workload.files import save_workload

    if out is None:
        raise InvalidInput("-o: must name the workload file to write, such as -o model.json")
    check_writable(out)
    if (config is None) == (model_code is None):
        given = "neither" if config is None else "both"
        raise InvalidInput(f"exactly one of CONFIG and --model-code must be given, got {given}")
    timeout_s, show = capture_timeout or CAPTURE_TIMEOUT_S, capture_progress()
    if model_code is not None:
        _refuse_of_config(seq_len, adapters, mask_token, fresh, pairs)
        workload = capture_model_code(
            model_code,
            micro_batch=micro_batch,
            global_batch=global_batch,
            freeze=freeze or (),
            timeout_s=timeout_s,
            on_progress=show,
        )
    else:
        assert config is not None
        workload = capture_config(
            config,
            micro_batch=micro_batch,
            global_batch=global_batch,
            seq_len=seq_len,
            adapters=adapters,
            freeze=freeze or (),
            mask_token=mask_token,
            pairs=pairs,
            fresh=fresh,
            timeout_s=timeout_s,
            on_progress=show,
            on_kept=say_kept,
        )
    save_workload(workload, out)
    _tell_captured(workload, out, as_json=as_json)


def _tell_captured(workload: "Workload", out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(_totals(workload) | {"ops": len(workload.graph.ops), "workload": str(out)})
    else:
        _print_headline(workload)
        console.print(f"workload written to {out}; look at it with: hetplanner workload show {out}")


def _refuse_of_config(
    seq_len: int | None, adapters: str | None, mask_token: int | None, fresh: bool, pairs: bool
) -> None:
    """Refuses options that --model-code does not take. Raises InvalidInput."""
    if mask_token is not None:
        raise InvalidInput("--mask-token: belongs to a config, not to --model-code")
    if pairs:
        raise InvalidInput("--pairs: is for configs; the factory of --model-code decides what its module learns")
    if fresh:
        raise InvalidInput("--fresh: is for configs; a model of --model-code is captured every time")
    if seq_len is not None:
        raise InvalidInput("--seq-len: must come from the factory's example inputs; change them there")
    if adapters is not None:
        raise InvalidInput("--adapters: are put into models of a CONFIG; the factory puts its own in, with PEFT")


def _totals(workload: "Workload") -> dict[str, Any]:
    graph = workload.graph
    return {
        "num_params": graph.num_params,
        "num_trained": graph.num_trained,
        "num_layers": graph.num_layers,
        "forward_flops": sum(op.forward_flops for op in graph.ops),
        "backward_flops": sum(op.backward_flops for op in graph.ops),
    }


def _shown(workload: "Workload") -> dict[str, Any]:
    data = workload.model_dump(mode="json", exclude_none=True, exclude={"captured", "program"})
    ops = [op.model_dump(mode="json", exclude_none=True) for op in workload.graph.ops]
    return data | _totals(workload) | {"trainable": _is_trainable(workload), "ops": ops}


def _is_trainable(workload: "Workload") -> bool:
    return workload.transformer is not None or workload.program is not None


def _print_headline(workload: "Workload") -> None:
    graph, is_text = workload.graph, workload.seq_len > 1
    targets = f"{workload.global_batch} × {workload.seq_len} {workload.token_word}"
    batch = targets if is_text else f"{workload.global_batch} samples"
    only_planned = "" if _is_trainable(workload) else "; it has no program, so it can be planned but not trained"
    console.print(
        bold(workload.name),
        f" {graph.num_params:,} parameters, {len(graph.ops)} operators,"
        f" {graph.num_layers} layers, {workload.dtype}; a step is {batch} in {workload.num_micro_batches}"
        f" micro-batches{only_planned}",
    )
    if workload.trained_text:
        console.print(workload.trained_text)


def _print(workload: "Workload") -> None:
    _print_headline(workload)
    if workload.provenance:
        console.print(workload.provenance, style="dim")
    columns = ("parameters", "forward", "backward", "kept", "sent")
    with_reads = workload.captured is not None
    names = ("op", "kind", "layer", *(("also reads",) if with_reads else ()))
    ops = table("Operators, per sample", *names, *columns, right=("layer", *columns))
    previous = ""
    for op in workload.graph.ops:
        reads = (", ".join(name for name in op.inputs if name != previous),) if with_reads else ()
        ops.add_row(*_what(op), *reads, *_costs(op))
        previous = op.name
    console.print(ops)


def _what(op: "Op") -> tuple[str, str, str]:
    name = op.name + (f" (tied to {op.tied})" if op.tied else "")
    return name, op.kind, "" if op.layer is None else str(op.layer)


def _costs(op: "Op") -> tuple[str, ...]:
    return (
        f"{op.num_params:,}",
        f"{op.forward_flops / 1e9:.3g} GFLOP",
        f"{op.backward_flops / 1e9:.3g} GFLOP",
        short_bytes(op.activation_bytes),
        short_bytes(op.output_bytes),
    )
