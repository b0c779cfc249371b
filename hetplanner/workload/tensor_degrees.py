"""By how many devices the layers of a workload can be shared: degrees of tensor parallelism."""

from typing import Literal

from hetplanner.workload.workload import Workload

TensorDegree = Literal[1, 2, 4, 8]
DEGREES: tuple[TensorDegree, ...] = (1, 2, 4, 8)


def why_not(workload: Workload, degree: int) -> str:
    """Why a workload's layers cannot be shared by so many devices, with what can; '' if they can.

    Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053): heads and columns of a layer are divided.
    Korthikanti et al. 2022 (arXiv 2205.05198): so are the tokens of a sequence.
    """
    if degree == 1:
        return ""
    shape = workload.transformer
    if shape is None:
        return f"{workload.name!r:.60} is a captured model, whose layers are not divided; use degree 1"
    if workload.fine_tuning is not None and workload.fine_tuning.adapters is not None:
        return "adapters are not divided; use degree 1"
    if shape.boundary_layers is not None:
        return "compression-aware layers are not divided; use degree 1"
    if degree not in DEGREES:
        return f"the degree must be 1, 2, 4 or 8, got {degree}"
    if shape.num_kv_heads % degree:
        fitting = [d for d in DEGREES if shape.num_kv_heads % d == 0 and shape.heads % d == 0]
        what = "heads" if shape.num_kv_heads == shape.heads else "key/value heads"
        return f"{shape.num_kv_heads} {what} are no multiple of {degree}; use {fitting[-1]}"
    if workload.seq_len % degree:
        fitting = [d for d in DEGREES if workload.seq_len % d == 0]
        return f"{workload.seq_len} tokens are no multiple of {degree}; use {fitting[-1]}, or other tokens"
    return ""
