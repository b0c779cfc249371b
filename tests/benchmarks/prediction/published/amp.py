"""AMP's trials: GPT-2 on 16 GPUs in four hosts, with tensor degrees 1, 2 and 4 and 1 to 16 stages.

The source publishes no profile that could be read, so the seconds of a block are fitted to a few trials: on T4 to those
without a pipeline, and three with one that also give the seconds of the head and of a step beside its plan; on V100 to
five trials of four stages. All others are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.model import Plan
from hetplanner.profiles.match import profile_of
from hetplanner.profiles.model import LayerCost, Profile
from hetplanner.simulator.timing import simulate_step_s
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.benchmarks.prediction.published.layouts import HostKind, Timed, layout, read_facts, room

FACTS = read_facts("amp.json")
BETWEEN = "50 Gbit/s"
T4 = HostKind("T4", inside="50 Gbit/s", nic="50 Gbit/s")
V100 = HostKind("V100-16", inside="170 Gbit/s", nic="10 Gbit/s")
HOSTS = {"t4": (T4, T4, T4, T4), "v100_t4": (V100, V100, V100, T4)}
TOKENS, LAYERS, BATCH = 1024, 24, 32
EMBEDDING = 0.05
"""Of a block's seconds."""
BACKWARD = 2.0
"""Forwards that a backward counts, as in the source."""
FITTED = {
    "t4": [
        *((1, 16, 1), (2, 8, 1), (2, 8, 2), (2, 8, 4), (4, 4, 1), (4, 4, 2), (4, 4, 4), (4, 4, 8)),
        *((1, 4, 1), (1, 4, 4), (1, 1, 4)),
    ],
    "v100_t4": [(1, 4, 4), (2, 2, 4), (2, 2, 16), (4, 1, 8), (4, 1, 32)],
}
"""Degree, replicas and micro-batch of the trials that are fitted."""


@dataclass(frozen=True)
class Known:
    """What is fitted.

    Attributes:
        block_s: seconds forward and backward, by kind, degree and micro-batch.
        head: blocks that the head counts.
        step_s: seconds of a step beside its plan.
    """

    block_s: dict[tuple[str, int, int], float]
    head: float
    step_s: float

    @classmethod
    def read(cls) -> Known:
        """From the file."""
        fitted = FACTS["fitted"]
        cells = {(kind, degree, size): seconds for kind, degree, size, seconds in fitted["block"]}
        return cls(cells, fitted["head"], fitted["step"])

    def profile(self, workload: Workload, kinds: set[str]) -> Profile:
        """Of a workload on some kinds."""
        parts = {"embedding": EMBEDDING, "block": 1.0, "head": self.head}
        rows = [
            LayerCost(
                kind=kind,
                degree=degree,
                micro_batch=size,
                layer=layer,
                forward=blocks * seconds / (1.0 + BACKWARD),
                backward=blocks * seconds * BACKWARD / (1.0 + BACKWARD),
            )
            for (kind, degree, size), seconds in self.block_s.items()
            if kind in kinds
            for layer, blocks in parts.items()
        ]
        return profile_of(workload, rows, name="gpt2 of AMP", source=FACTS["source"])


@dataclass(frozen=True)
class Trial:
    """A published trial.

    Attributes:
        cluster: a key of `HOSTS`.
        degree: of tensor parallelism.
        replicas: of each stage.
        cut: blocks in front of each inner boundary.
        micro_batch: samples.
        seconds: of a step.
    """

    cluster: str
    degree: int
    replicas: int
    cut: Sequence[int]
    micro_batch: int
    seconds: float

    @property
    def is_fitted(self) -> bool:
        """Whether what is known comes from it."""
        return (self.degree, self.replicas, self.micro_batch) in FITTED[self.cluster]

    def plan(self, known: Known) -> Plan:
        """The trial."""
        shape = TransformerConfig(vocab=52256, max_seq_len=TOKENS, hidden=1024, layers=LAYERS, heads=16, ffn=4096)
        workload = Workload(
            name="gpt2-350m",
            transformer=shape,
            global_batch=BATCH,
            micro_batch=self.micro_batch,
            seq_len=TOKENS,
            dtype="float16",
        )
        hosts = HOSTS[self.cluster]
        cluster = room(hosts, between=BETWEEN, step_s=known.step_s)
        profile = known.profile(workload, {host.gpu for host in hosts})
        return layout(cluster, workload, degree=self.degree, replicas=self.replicas, cut=self.cut, profile=profile)

    def timed(self, known: Known) -> Timed:
        """Its step, published and predicted."""
        plan = self.plan(known)
        return Timed(self.seconds, estimate_plan(plan).step_s, simulate_step_s(plan), self.is_fitted)


def trials(cluster: str) -> list[Trial]:
    """As published, those that ended with a time."""
    return [Trial(cluster, **fields) for fields in FACTS[cluster]]


def fit(known: Known) -> Known:
    """Brings the closed form to the fitted trials: first T4 with head and step, then V100."""
    of_t4 = [cell for cell in known.block_s if cell[0] == T4.gpu]
    of_v100 = [cell for cell in known.block_s if cell[0] == V100.gpu]
    return _fit_to(_fit_to(known, "t4", of_t4, with_rest=True), "v100_t4", of_v100, with_rest=False)


def _fit_to(known: Known, cluster: str, cells: list[tuple[str, int, int]], *, with_rest: bool) -> Known:
    from scipy.optimize import least_squares

    fitted = [trial for trial in trials(cluster) if trial.is_fitted]

    def moved(change: Any) -> Known:
        factors = np.exp(change).tolist()
        block_s = known.block_s | {
            cell: known.block_s[cell] * factor for cell, factor in zip(cells, factors, strict=False)
        }
        if not with_rest:
            return replace(known, block_s=block_s)
        return Known(block_s, known.head * factors[-2], known.step_s * factors[-1])

    def errors(change: Any) -> list[float]:
        there = moved(change)
        return [float(np.log(estimate_plan(trial.plan(there)).step_s / trial.seconds)) for trial in fitted]

    return moved(least_squares(errors, np.zeros(len(cells) + 2 * with_rest)).x)
