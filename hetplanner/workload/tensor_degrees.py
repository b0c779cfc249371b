"""How devices of one host can share a replica of a workload: what they divide, and how many there may be.

Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053): heads and columns of a layer are divided. Korthikanti et
al. 2022 (arXiv 2205.05198): so are the tokens of a sequence. Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054): samples
are divided, and with them gradients and optimizer states (stage 2), weights, too (stage 3).
"""

from typing import Literal, get_args

from hetplanner.workload.workload import Workload

TensorDegree = Literal[1, 2, 4, 8]
DEGREES: tuple[TensorDegree, ...] = (1, 2, 4, 8)
Sharding = Literal["tensor", "zero2", "zero3"]
"""What the devices of a group divide: the layers; or the samples of a micro-batch, with gradients and optimizer states
(zero2), with the weights, too (zero3)."""
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
SHARDING_WORDS: dict[Sharding, str] = {"tensor": "tensor parallelism", "zero2": "ZeRO 2", "zero3": "ZeRO 3"}

MOST_WHOLE = 0.5
"""Of a captured model's arithmetic: what may stay undivided where devices divide its layers."""


def why_not(workload: Workload, degree: int, sharding: Sharding = "tensor") -> str:
    """Why so many devices cannot share a workload's layers or samples, with what can; '' if they can."""
    if degree == 1:
        return ""
    if degree not in DEGREES:
        return f"the degree must be 1, 2, 4 or 8, got {degree}"
    if workload.program is not None:
        if sharding == "tensor":
            return _why_no_calls(workload, degree)
        if found := workload.why_samples_are_whole:
            return f"{workload.name!r:.60} is a captured model whose samples are not divided: {found}; use degree 1"
    elif workload.transformer is None:
        return f"{workload.name!r:.60} has no calls that could be divided; use degree 1"
    return _why_no_layers(workload, degree) if sharding == "tensor" else _why_no_samples(workload, degree)


def _why_no_calls(workload: Workload, degree: int) -> str:
    """Of a captured model, whose products and heads its calls tell."""
    share, most_in = undivided_share(workload, degree)
    if share <= MOST_WHOLE:
        return ""
    fitting = next((fewer for fewer in DEGREES[-1:0:-1] if fewer < degree and not _why_no_calls(workload, fewer)), 1)
    return (
        f"{workload.name!r:.60} is a captured model: {share:.0%} of its arithmetic is not divided, most of it in "
        f"{most_in!r:.80}; use degree {fitting}, or sharding zero2 or zero3"
    )


def undivided_share(workload: Workload, degree: int) -> tuple[float, str]:
    """Of a captured model whose layers so many devices divide: the share of its FLOPs that is not divided, and the
    operator with most of it.
    """
    computed, ops = workload.whole_shares(degree).computed, workload.graph.ops
    flops = {op.name: op.forward_flops * computed.get(op.name, 1.0) for op in ops}
    share = sum(flops.values()) / max(1.0, sum(op.forward_flops for op in ops))
    return share, max(flops, key=flops.__getitem__)


def _why_no_layers(workload: Workload, degree: int) -> str:
    shape = workload.transformer
    assert shape is not None
    if workload.fine_tuning is not None and workload.fine_tuning.adapters is not None:
        return "adapters are not divided; use degree 1, or sharding zero2 or zero3"
    if shape.boundary_layers is not None:
        return "compression-aware layers are not divided; use degree 1, or sharding zero2 or zero3"
    if shape.num_kv_heads % degree:
        fitting = [d for d in DEGREES if shape.num_kv_heads % d == 0 and shape.heads % d == 0]
        what = "heads" if shape.num_kv_heads == shape.heads else "key/value heads"
        return f"{shape.num_kv_heads} {what} are no multiple of {degree}; use {fitting[-1]}"
    if workload.seq_len % degree:
        fitting = [d for d in DEGREES if workload.seq_len % d == 0]
        return f"{workload.seq_len} tokens are no multiple of {degree}; use {fitting[-1]}, or other tokens"
    return ""


def _why_no_samples(workload: Workload, degree: int) -> str:
    size = workload.micro_batch
    if size % degree == 0:
        return ""
    fitting = [d for d in DEGREES if size % d == 0]
    what = f"{size} sample{'s' if size > 1 else ''} of a micro-batch cannot be divided by {degree}"
    return f"{what}; use {fitting[-1]}, or micro-batches of a multiple of {degree}"
