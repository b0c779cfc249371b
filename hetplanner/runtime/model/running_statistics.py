"""Running statistics (batch norm's) of a stage's replicas made one.

Every replica's statistics follow the micro-batches it has seen; they steer nothing in training, so replicas drift
apart until the model is saved, checkpointed or evaluated. Then they become the mean over replicas, weighted by
micro-batches; counters of batches become the sum of what every replica has counted.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.plan.model import Plan
from hetplanner.runtime.comm.transport import Topic, tag_of
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.chunk import Chunk


@torch.no_grad()
def merge_running(plan: Plan, rank: int, chunks: Sequence[Chunk]) -> None:
    """Makes the running statistics of every stage equal on all its replicas; all ranks must call it between steps.

    Args:
        plan: says which rank holds what, and every replica's share of the micro-batches.
        rank: this rank.
        chunks: what it holds, in stage order (so ranks that hold several stages meet in one order).
    """
    for chunk in chunks:
        ranks = [plan.rank_at(chunk.stage, r) for r in range(len(plan.stages[chunk.stage].replicas))]
        if not chunk.model.running or len(ranks) == 1:
            continue
        mine, tag = _summary(chunk.model, _micro_batches(plan, chunk)), tag_of(Topic.RUNNING, chunk.stage)
        if chunk.replica:
            dist.send(mine, ranks[0], tag=tag)
            dist.recv(mine, ranks[0], tag=tag)
        else:
            for other in ranks[1:]:
                theirs = torch.empty_like(mine)
                dist.recv(theirs, other, tag=tag)
                mine += theirs
            for other in ranks[1:]:
                dist.send(mine, other, tag=tag)
        chunk.model.load_running(_merged(chunk.model, mine))


def _micro_batches(plan: Plan, chunk: Chunk) -> int:
    return sum(route.micro_batches for route in plan.routes if route.replicas[chunk.stage] == chunk.replica)


def _summary(model: StageModel, share: int) -> Tensor:
    """Float64, 1-D: the share; means times the share, and what was counted since replicas were last equal."""
    parts = [torch.tensor([share])]
    for name, tensor in model.running.items():
        parts.append(tensor.double() * share if tensor.is_floating_point() else tensor - model.counted[name])
    return torch.cat([part.cpu().double().reshape(-1) for part in parts])


def _merged(model: StageModel, total: Tensor) -> dict[str, Tensor]:
    """What all replicas hold, from the sum of their summaries."""
    share, *parts = total.split([1, *(tensor.numel() for tensor in model.running.values())])
    merged = {}
    for (name, tensor), part in zip(model.running.items(), parts, strict=True):
        value = part / share if tensor.is_floating_point() else part + model.counted[name].cpu().double().reshape(-1)
        merged[name] = value.view(tensor.shape)
    return merged
