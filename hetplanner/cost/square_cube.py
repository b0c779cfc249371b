"""The square-cube law: a wider stage computes with the square of its width (per token) and sends with the width.

    compute    forward and backward of one micro-batch through a stage of equal layers, as in every plan's estimate
    transfer   (activation + gradient) bytes / bandwidth: what the stage sends for the micro-batch, and receives as much

With enough micro-batches in flight latency is hidden, sending and receiving overlap with computing, and a device is
busy for compute / max(compute, transfer).

Source: Ryabinin et al. 2023 (SWARM, arXiv 2301.11913), section 3.1; the times are those of our cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetplanner.cluster.model import Cluster, Device, Host, Site
from hetplanner.codecs.spec import NO_CODEC, Codec
from hetplanner.cost.tables import CostTables
from hetplanner.dtypes import DType
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Problem
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

HEAD_DIM = 64
VOCAB = 256
"""The stage is one from the middle of a model: embedding and head are not in it."""
WIDTHS = (256, 512, 1024, 2048, 4096, 8192)
BANDWIDTHS = (12.5e6, 25e6, 62.5e6, 125e6, 1.25e9)
"""100, 200 and 500 Mbit/s, 1 and 10 Gbit/s."""


@dataclass(frozen=True)
class SquareCubePoint:
    """One width at one bandwidth.

    Attributes:
        hidden: width of the model.
        bandwidth_bytes_per_s: of the device's network, each way.
        compute_s: seconds of one micro-batch, forward and backward.
        transfer_s: seconds for which its messages occupy the network, each way.
    """

    hidden: int
    bandwidth_bytes_per_s: float
    compute_s: float
    transfer_s: float

    @property
    def utilisation(self) -> float:
        """Share of the time in which the device computes, with enough micro-batches in flight."""
        return self.compute_s / max(self.compute_s, self.transfer_s)


def square_cube_law(
    hidden: Sequence[int] = WIDTHS,
    bandwidth_bytes_per_s: Sequence[float] = BANDWIDTHS,
    *,
    device: str = "T4",
    layers: int = 1,
    seq_len: int = 512,
    micro_batch: int = 1,
    dtype: DType = "float16",
    codec: Codec = NO_CODEC,
    recompute: bool = False,
) -> tuple[SquareCubePoint, ...]:
    """Compute and transfer time of a transformer stage over its width and its network.

    Args:
        hidden: widths of the model, multiples of 64 (of a head).
        bandwidth_bytes_per_s: of the device's network, each way.
        device: kind of device, as in the catalog.
        layers: layers of the stage.
        seq_len: tokens of a sequence.
        micro_batch: sequences of a micro-batch.
        dtype: number format.
        codec: of activations and gradients.
        recompute: the backward computes the forward again.

    Returns:
        A point for every width and bandwidth, width by width.

    Raises:
        InvalidInput: a width that is no multiple of 64, a bandwidth that is not above 0, an unknown device.
    """
    wrong = [rate for rate in bandwidth_bytes_per_s if not 0 < rate < float("inf")]
    if wrong:
        raise InvalidInput(f"bandwidth_bytes_per_s: must be above 0, got {wrong[0]:g}")
    points = []
    for width in hidden:
        if width < HEAD_DIM or width % HEAD_DIM:
            raise InvalidInput(f"hidden: must be a multiple of {HEAD_DIM}, got {width}")
        workload = _workload(width, layers, seq_len, micro_batch, dtype)
        compute_s, sent_bytes = _stage(workload, device, codec, recompute)
        points += [SquareCubePoint(width, rate, compute_s, sent_bytes / rate) for rate in bandwidth_bytes_per_s]
    return tuple(points)


def _workload(hidden: int, layers: int, seq_len: int, micro_batch: int, dtype: DType) -> Workload:
    """A model with one layer more on either side of the stage."""
    config = TransformerConfig(
        vocab=VOCAB, max_seq_len=seq_len, hidden=hidden, layers=layers + 2, heads=hidden // HEAD_DIM, ffn=4 * hidden
    )
    return Workload(
        name=f"hidden {hidden}",
        transformer=config,
        global_batch=micro_batch,
        micro_batch=micro_batch,
        seq_len=seq_len,
        dtype=dtype,
    )


def _stage(workload: Workload, device: str, codec: Codec, recompute: bool) -> tuple[float, int]:
    """Seconds of a micro-batch in the layers between the first and the last, and bytes that these send for it."""
    cluster = Cluster(
        name="one device",
        sites=(Site(name="here", latitude=0.0, longitude=0.0),),
        hosts=(Host(id="host", site="here"),),
        devices=(Device(id="device", kind=device, host="host"),),
    )
    tables = CostTables(Problem(cluster=cluster, workload=workload))
    # Boundaries lie behind the embedding and behind every layer.
    first, end = workload.boundaries[1], workload.boundaries[-2]
    forward_s, backward_s = (float(t[0, end] - t[0, first]) for t in (tables.forward_s_CO, tables.backward_s_CO))
    passes = (False, True)  # activations on, gradients back at top-k's known positions
    sizes = [
        codec.wire_bytes(workload.boundary_elements[cut], workload.dtype_bytes, positions_known=back)
        for cut, back in zip((end, first), passes, strict=True)
    ]
    return forward_s * (2 if recompute else 1) + backward_s, sum(sizes)
