"""OPT-350M on 32 to 128 GH200, tensor parallelism over four: seconds and peak memory, from a profile of one run.

The seconds of that run's four stages tell embedding, block and head apart, and the memory of its second and third stage
tells what a block keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetplanner.cost.estimate import estimate_plan
from hetplanner.cost.memory_parts import memory_parts
from hetplanner.plan.model import Plan
from hetplanner.profiles.match import profile_of
from hetplanner.profiles.model import LayerCost, Profile
from hetplanner.simulator.timing import simulate_step_s
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.benchmarks.prediction.published.layouts import HostKind, Timed, layout, read_facts, room

FACTS = read_facts("gh200.json")
HOST = HostKind("GH200", inside="2004 Gbit/s", nic="740 Gbit/s")
BETWEEN = "183.5 Gbit/s"
DEGREE, MICRO_BATCH, TOKENS, LAYERS, VOCAB = 4, 8, 2048, 24, 50272
MIB, HALF_BYTES = 2.0**20, 2


@dataclass(frozen=True)
class Run:
    """A published run; every host is a group.

    Attributes:
        hosts: of four GPUs each.
        batch: samples of a step.
        stages: of the pipeline.
        seconds: of a step.
        peak_mib: MiB of a GPU of each stage at its peak.
    """

    hosts: int
    batch: int
    stages: int
    seconds: float
    peak_mib: Sequence[float]

    @property
    def is_fitted(self) -> bool:
        """Whether the profile comes from it."""
        measured = FACTS["measured_stages"]
        return (self.hosts, self.stages) == (measured["hosts"], measured["stages"])

    @cached_property
    def plan(self) -> Plan:
        """The run with an equal number of blocks in each stage."""
        shape = TransformerConfig(vocab=VOCAB, max_seq_len=TOKENS, hidden=1024, layers=LAYERS, heads=16, ffn=4096)
        workload = Workload(
            name="opt-350m",
            transformer=shape,
            global_batch=self.batch,
            micro_batch=MICRO_BATCH,
            seq_len=TOKENS,
            dtype="float16",
        )
        cluster = room([HOST] * self.hosts, between=BETWEEN)
        cut = [s * LAYERS // self.stages for s in range(1, self.stages)]
        profile, replicas = fitted_profile(workload), self.hosts // self.stages
        return layout(cluster, workload, degree=DEGREE, replicas=replicas, cut=cut, profile=profile)

    @property
    def timed(self) -> Timed:
        """Its step, published and predicted."""
        return Timed(self.seconds, estimate_plan(self.plan).step_s, simulate_step_s(self.plan), self.is_fitted)

    @property
    def memory_errors(self) -> list[float]:
        """Of the peak of a GPU, relative, by stage."""
        parts, replicas = memory_parts(self.plan), self.hosts // self.stages
        return [parts[s * replicas].total / DEGREE / MIB / peak - 1.0 for s, peak in enumerate(self.peak_mib)]


def runs() -> list[Run]:
    """As published."""
    return [Run(**fields) for fields in FACTS["rows"]]


def fitted_profile(workload: Workload) -> Profile:
    """Seconds and kept bytes of embedding, block and head, of a group of four."""
    measured = FACTS["measured_stages"]
    (fitted,) = (run for run in runs() if run.is_fitted)
    _, second, third, _ = fitted.peak_mib  # three and two micro-batches in flight
    kept = {
        "embedding": 0.0,
        "block": (second - third) * MIB / measured["blocks"],
        "head": HALF_BYTES * MICRO_BATCH * TOKENS * VOCAB / DEGREE,
    }
    seconds: dict[str, dict[str, float]] = {name: {} for name in kept}
    for way in ("forward", "backward"):
        first, *inner, last = (total / measured["micro_batches"] for total in measured[way])
        blocks = float(np.mean(inner))
        seconds["embedding"][way], seconds["head"][way] = max(first - blocks, 0.0), last - blocks
        seconds["block"][way] = blocks / measured["blocks"]
    rows = [
        LayerCost(kind=HOST.gpu, degree=DEGREE, micro_batch=MICRO_BATCH, layer=name, kept=kept[name], **seconds[name])
        for name in kept
    ]
    return profile_of(workload, rows, name="opt-350m", source=FACTS["source"])
