"""DT-FM's own runtime, simulated: what its measured seconds per iteration are held against.

It differs from ours, so our simulator does not time it. One iteration is B / (64 D_DP) GPipe flushes of 64
micro-batches a pipeline; a barrier lies between the forward and the backward phase; a stage performs recv 0, send 0,
recv 1, send 1, … one at a time; backward recomputes (3 x forward); at the end every stage reduces its gradients over
one chain of devices and broadcasts the sum over another (NCCL reduce and broadcast, both pipelined; fp16).

A message of M bytes crosses a link in `w = message + M / bandwidth` seconds and arrives one latency later. It passes a
buffer at either end that holds the share `overlap` of it. With S the time of hand-over, R of the posted receive less
the latency, F of the link being free:

    unhindered = max(S, F) + w
    on the wire until  max(unhindered, R + (1 - overlap) w)                 the wire runs ahead of R by one buffer
    sender free at     max(unhindered - overlap w, R + (1 - 2 overlap) w)   the rest lies in the two buffers

Bytes on their way fill no buffer: a byte that leaves one latency before the receive is posted arrives as it is posted.

A device has its even share of its host's NIC, because in a phase all devices of a host send at the same time.

What is left out: the optimizer on the CPU (its share is taken up by the efficiency), and unlike compute on first and
last stage (the measured task has two classes, hence no logits).

Legend of array suffixes: D devices, P pipelines, S stages, E hops between neighbouring stages (S - 1).

Source: Yuan et al., NeurIPS 2022 (arXiv 2206.01288) and its public code (order of transfers, barrier, reducer);
    the buffers and their one parameter are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetplanner.arrays import BoolArray, FloatArray, IntArray
from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.model import Cluster

MESSAGE_S = 0.015
"""Of a message between hosts, beyond latency and bytes / bandwidth (read off the published runs, not fitted here)."""
MICRO_BATCHES_PER_FLUSH = 64
HIDDEN, SEQ_LEN = 2048, 2048
VOCAB = 28_996
"""Words of the tokenizer that the measured task uses (BERT large, cased)."""
ELEMENT_BYTES = 2
BACKWARD = 3.0
"""Backward seconds per forward second: two matmuls for each one, and the recomputed forward."""


@dataclass(frozen=True)
class Deployment:
    """A GPT-3 XL of `layers` layers on a placement.

    Attributes:
        placement_PS: device index of every stage of every pipeline.
    """

    cluster: Cluster
    placement_PS: IntArray
    layers: int

    @property
    def num_stages(self) -> int:
        """Pipeline stages, with equal numbers of layers."""
        return int(self.placement_PS.shape[1])

    @cached_property
    def bandwidth_bytes_per_s_DD(self) -> FloatArray:
        """Of a link, not above the sender's and receiver's even share of their hosts' NICs."""
        host_D = self.cluster.host_index_D
        sharing_D = np.bincount(host_D[self.placement_PS.ravel()], minlength=len(self.cluster.hosts))[host_D]
        sharing_D = np.maximum(sharing_D, 1)
        out_D, in_D = (
            np.array([getattr(host, way) or np.inf for host in self.cluster.hosts])[host_D] / sharing_D
            for way in ("nic_out", "nic_in")
        )
        shared_DD = np.minimum(out_D[:, None], in_D[None, :])
        return np.minimum(self.cluster.bandwidth_bytes_per_s_DD, np.where(self._apart_DD, shared_DD, np.inf))

    @cached_property
    def _apart_DD(self) -> BoolArray:
        host_D = self.cluster.host_index_D
        return np.asarray(host_D[:, None] != host_D[None, :])

    @cached_property
    def wire_s_DD(self) -> FloatArray:
        """For which one boundary message occupies a link."""
        size = HIDDEN * SEQ_LEN * ELEMENT_BYTES
        return size / self.bandwidth_bytes_per_s_DD + np.where(self._apart_DD, MESSAGE_S, 0.0)

    @cached_property
    def ideal_forward_s(self) -> float:
        """One micro-batch through one stage at the devices' peak rate."""
        flops = SEQ_LEN * (24 * HIDDEN**2 + 4 * SEQ_LEN * HIDDEN) * self.layers / self.num_stages
        device = self.cluster.devices[int(self.placement_PS[0, 0])]
        return float(flops / resolve_device(device).flops_per_s("float16"))

    @cached_property
    def gradient_bytes_S(self) -> FloatArray:
        """Of every stage; the first also holds the embeddings of words and positions."""
        params_S = np.full(self.num_stages, 12.0 * HIDDEN**2 * self.layers / self.num_stages)
        params_S[0] += (VOCAB + SEQ_LEN) * HIDDEN
        return np.asarray(params_S * ELEMENT_BYTES)

    @cached_property
    def reduce_s_S(self) -> FloatArray:
        """Reduce and broadcast of every stage's gradients over a chain of its devices, those of one host together."""
        return np.array([self._chain_seconds(stage) for stage in range(self.num_stages)])

    def _chain_seconds(self, stage: int) -> float:
        host_D = self.cluster.host_index_D
        members = self.placement_PS[:, stage].tolist()
        hosts = list(dict.fromkeys(int(host_D[d]) for d in members))
        chain = sorted(members, key=lambda d: hosts.index(int(host_D[d])))
        a, b = np.array(chain[:-1], dtype=np.int64), np.array(chain[1:], dtype=np.int64)
        if not len(a):
            return 0.0
        fill_s = float((self.cluster.latency_s_DD[a, b] + np.where(self._apart_DD[a, b], MESSAGE_S, 0.0)).sum())
        return 2.0 * (fill_s + float((self.gradient_bytes_S[stage] / self.bandwidth_bytes_per_s_DD[a, b]).max()))

    @cached_property
    def barrier_s(self) -> float:
        """A message along the slowest pipeline and back."""
        a, b = self.placement_PS[:, :-1], self.placement_PS[:, 1:]
        latency_DD = self.cluster.latency_s_DD
        return float((latency_DD[a, b] + latency_DD[b, a]).sum(axis=1).max())


def iteration_seconds(
    deployment: Deployment, batch: int, efficiency: float | FloatArray, overlap: float | FloatArray
) -> FloatArray:
    """Seconds of one iteration.

    Args:
        deployment: model, cluster and placement.
        batch: sequences per iteration, over all pipelines.
        efficiency: share of the devices' peak rate that compute reaches.
        overlap: share of a message that either end's buffer holds (0 to 1).

    Returns:
        One number for every pair of `efficiency` and `overlap`, which are broadcast against each other.
    """
    efficiency, overlap = np.broadcast_arrays(np.asarray(efficiency, float), np.asarray(overlap, float))
    shape = efficiency.shape
    forward_s_G1 = deployment.ideal_forward_s / efficiency.reshape(-1, 1)
    overlap_G1 = overlap.reshape(-1, 1)
    placement = deployment.placement_PS
    forward_GPS = _phase_ends(deployment, placement, forward_s_G1, overlap_G1)
    backward_GPS = _phase_ends(deployment, placement[:, ::-1], BACKWARD * forward_s_G1, overlap_G1)[..., ::-1]
    flushes = batch / (len(placement) * MICRO_BATCHES_PER_FLUSH)
    flush_s_G = forward_GPS.max(axis=(1, 2)) + deployment.barrier_s + backward_GPS.max(axis=(1, 2))
    # A stage reduces when its own last backward is through; the earlier stages still drain.
    tail_s_G = (backward_GPS.max(axis=1) + deployment.reduce_s_S).max(axis=1) - backward_GPS.max(axis=(1, 2))
    return np.asarray(flushes * flush_s_G + tail_s_G).reshape(shape)


def _phase_ends(
    deployment: Deployment, placement_PS: IntArray, compute_s_G1: FloatArray, overlap_G1: FloatArray
) -> FloatArray:
    """When every stage has computed its last micro-batch of a phase that begins at 0, stages in the phase's order."""
    a, b = placement_PS[:, :-1], placement_PS[:, 1:]
    wire_s_PE, latency_s_PE = deployment.wire_s_DD[a, b], deployment.cluster.latency_s_DD[a, b]
    num_hops = a.shape[1]
    done, free, freed, posted = (
        [np.zeros((len(compute_s_G1), len(a))) for _ in range(num_hops + 1)] for _ in range(4)
    )  # by stage: last compute; by hop: link free, sender free, receive posted
    for _ in range(MICRO_BATCHES_PER_FLUSH):
        done[0] = done[0] + compute_s_G1
        handed = np.maximum(done[0], freed[0])
        for e in range(num_hops):
            wire, latency = wire_s_PE[:, e], latency_s_PE[:, e]
            # An inner stage posts its next receive when its own send of the micro-batch before has left it.
            receive = (freed[e + 1] if e + 1 < num_hops else posted[e]) - latency
            unhindered = np.maximum(handed, free[e]) + wire
            free[e] = np.maximum(unhindered, receive + (1.0 - overlap_G1) * wire)
            freed[e] = np.maximum(unhindered - overlap_G1 * wire, receive + (1.0 - 2.0 * overlap_G1) * wire)
            freed[e] = np.maximum(freed[e], handed)
            arrival = free[e] + latency
            posted[e] = arrival
            done[e + 1] = np.maximum(done[e + 1], arrival) + compute_s_G1
            handed = done[e + 1]
    return np.stack(done, axis=-1)


def megatron_seconds(deployment: Deployment, batch: int, efficiency: float) -> float:
    """Seconds of one iteration of Megatron's pipeline: 1F1B, blocking transfers, gradients by ring all-reduce.

    A stage computes forward and backward, exchanges activation and gradient with the next stage (both ways at once)
    and then with the stage before, none of it overlapped.
    """
    a, b = deployment.placement_PS[:, :-1], deployment.placement_PS[:, 1:]
    hop_s_DD = deployment.wire_s_DD + deployment.cluster.latency_s_DD
    exchange_PE = np.maximum(hop_s_DD[a, b], hop_s_DD[b, a])
    compute_s = (1.0 + BACKWARD) * deployment.ideal_forward_s / efficiency
    around = np.pad(exchange_PE, ((0, 0), (1, 1)))
    period_P = compute_s + (around[:, :-1] + around[:, 1:]).max(axis=1)
    fill_P = (deployment.num_stages - 1) * compute_s + 2.0 * exchange_PE.sum(axis=1)
    micro_batches = batch / len(deployment.placement_PS)
    pipeline_s = float((micro_batches * period_P + fill_P).max())
    return pipeline_s + max(_ring_seconds(deployment, stage) for stage in range(deployment.num_stages))


def _ring_seconds(deployment: Deployment, stage: int) -> float:
    """Ring all-reduce: 2 (n - 1) / n of the gradients over the slowest hop, and 2 (n - 1) hops of latency."""
    a = deployment.placement_PS[:, stage]
    b = np.roll(a, -1)
    share = deployment.gradient_bytes_S[stage] / len(a)
    hop_s = share / deployment.bandwidth_bytes_per_s_DD[a, b] + deployment.cluster.latency_s_DD[a, b]
    return float(2.0 * (len(a) - 1) * hop_s.max())
