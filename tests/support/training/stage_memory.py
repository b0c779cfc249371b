"""The live tensors of one stage at work, and what a plan counts for them."""

from dataclasses import dataclass
from typing import Any

import torch

from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.huggingface import config_factory
from hetplanner.cost.compute.groups import repeated_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.dtypes import DTYPE_BYTES
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.reducers.program import cut_range
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.device_group.group import ALONE, DeviceGroup
from hetplanner.runtime.measure.live_bytes import LiveBytes
from hetplanner.runtime.model.build import Batch, StageModel
from hetplanner.runtime.model.layout import own_pieces
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.optimizers import StageOptimizer
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.tensor_degrees import Sharding
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans.grouped import hosts

STATE_BYTES = 16.0
"""Of a weight in float32 with gradient and AdamW's moments."""


CAPTURED = "captured "


@dataclass(frozen=True)
class Case:
    """A stage: which part of the model, and how many micro-batches it holds; `captured phi` is captured."""

    family: str
    dtype: str
    part: str
    in_flight: int = 1
    recompute: bool = False
    more: tuple[tuple[str, Any], ...] = ()
    adapters: Adapters | None = None

    def __str__(self) -> str:
        more = ", ".join(f"{name} {value}" for name, value in self.more)
        kinds = [" again"] * self.recompute + [" adapters"] * (self.adapters is not None)
        return f"{self.family} {self.dtype} {self.part} {self.in_flight}{''.join(kinds)} {more}"


CAPTURES: dict[str, Workload] = {}
"""By type of model; another process is given them: to capture one it would load transformers."""


def captured(model_type: str) -> Workload:
    """An architecture of transformers of the same size, captured once."""
    if model_type not in CAPTURES:
        CAPTURES[model_type] = _capture(model_type)
    return CAPTURES[model_type]


def _capture(model_type: str) -> Workload:
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    fields = {"model_type": model_type, "vocab_size": 4000, "max_position_embeddings": 256, **sizes}
    factory = config_factory(fields, model_type, micro_batch=4, seq_len=256)
    return capture_workload(factory, model_type, global_batch=16, task=factory.task)


def workload_of(case: Case) -> Workload:
    if case.family.startswith(CAPTURED):
        made = captured(case.family.removeprefix(CAPTURED))
        graph = made.captured.in_dtype(4, DTYPE_BYTES[case.dtype])
        return made.replace(dtype=case.dtype, captured=graph, recompute=case.recompute)
    is_llama = case.family == "llama"
    usual: dict[str, Any] = {"vocab": 4000, "tie_embeddings": False, "dropout": 0.0, "hidden": 128}
    config = TransformerConfig(
        family=case.family, max_seq_len=256, layers=4, heads=4, ffn=344 if is_llama else 512,
        kv_heads=2 if is_llama else None, **(usual | dict(case.more)),
    )  # fmt: skip
    return Workload(
        name="memory", transformer=config, global_batch=16, micro_batch=4, seq_len=256, dtype=case.dtype,
        recompute=case.recompute,
        fine_tuning=FineTuning(adapters=case.adapters) if case.adapters else None,
    )  # fmt: skip


def counted(case: Case, group: DeviceGroup = ALONE, replicas: int = 1) -> int:
    """Most live bytes in a step of the stage, weights and states included; of a member of a group its own.

    Of several replicas it is one that has its part of the states (ZeRO stage 1).
    """
    workload = workload_of(case)
    first, end = span_of(case, workload)
    model = StageModel(workload, first, end, 0, None, group)
    members = group.degree if group.divides_samples else 0
    runner = StageRunner(model, recompute=case.recompute, in_flight=case.in_flight, members=members)
    weights = model.weights if group.degree > 1 else None
    shard = cut_range(0, model.flat.numel(), replicas)[:1] if replicas > 1 else None
    optimizer = StageOptimizer(workload, first, end, TrainConfig(), model.flat, model.flat_grad, weights, shard=shard)
    given = [model.flat, model.flat_grad, model.frozen, *optimizer.states.values()]
    tokens = torch.randint(0, 4000, (2, workload.micro_batch, workload.seq_len))
    sizes = [sum(group.sizes_of(own_pieces(workload, boundary, group), group.index)) for boundary in (first, end)]
    live = LiveBytes()
    live.leave_out(*given, tokens)
    with live:
        for micro_batch in range(case.in_flight):
            x = None if model.is_first else torch.randn(sizes[0])
            runner.forward(micro_batch, x, Batch(tokens[0], tokens[1]), RngKey(0, 0, micro_batch))
        del x
        for micro_batch in range(case.in_flight):
            runner.backward(micro_batch, None if model.is_last else torch.randn(sizes[1]))
        if replicas > 1:
            optimizer.step_into_gradients(1e-3)
        else:
            optimizer.step(1e-3)
    return live.peak + sum(tensor.untyped_storage().nbytes() for tensor in given)


def span_of(case: Case, workload: Workload) -> tuple[int, int]:
    """First and end operator of the stage."""
    ops, cuts = len(workload.graph.ops), workload.boundaries
    if workload.transformer is None:
        cuts = [cut for cut in cuts if workload.graph.ops[cut].layer != workload.graph.ops[cut - 1].layer]
    spans = {"first": (0, cuts[1]), "middle": (cuts[0], cuts[2]), "last": (cuts[1], ops), "all": (0, ops)}
    return spans[case.part]


def planned(case: Case, degree: int = 1, replicas: int = 1, sharding: Sharding = "tensor") -> float:
    """What a plan counts for the stage, without messages between stages and of reductions; of a group for its leader,
    of several replicas with ZeRO for each.
    """
    workload = workload_of(case)
    first, end = span_of(case, workload)
    zero = Constraints(zero=int(replicas > 1))
    cluster = hosts(("T4", degree))
    groups = (WorkerGroup(devices=cluster.device_ids, sharding=sharding),) if degree > 1 else None
    tables = CostTables(Problem(cluster=cluster, workload=workload, constraints=zero, groups=groups))
    messages = tables.stage_bytes(first, end, 0, case.recompute) - tables.stage_state_bytes(first, end)
    whole = tables.stage_bytes(first, end, case.in_flight, case.recompute) - messages
    whole -= tables.sharded_bytes(first, end, replicas)
    if degree == 1:
        return whole
    each = repeated_bytes(workload, STATE_BYTES, sharding)  # with messages, which the leader alone has
    return (whole + messages - each) / degree + each - messages
