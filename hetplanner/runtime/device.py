"""Which device a rank computes on, and whether every rank has a GPU of its own."""

import socket
from hashlib import sha256

import torch
import torch.distributed as dist

from hetplanner.cluster.catalog import find_kind
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.connect import Place
from hetplanner.runtime.wire import CPU


def choose_device(plan: Plan, config: TrainConfig, place: Place) -> torch.device:
    """The rank's device: the GPU of its local rank among those that CUDA_VISIBLE_DEVICES leaves, or the processor.

    With `config.device` auto a GPU is taken where the plan has one and torch sees one.

    Raises:
        InvalidInput: a GPU was asked for, and torch sees none.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if config.device == "cuda" and not count:
        raise InvalidInput(
            f"device: must be auto or cpu on {socket.gethostname()}, where torch sees no GPU, got cuda;"
            " install a torch with CUDA, or look at CUDA_VISIBLE_DEVICES"
        )
    if not count or config.device == "cpu" or (config.device == "auto" and _is_planned_on_cpu(plan, place.rank)):
        return CPU
    device = torch.device("cuda", place.local_rank % count)
    torch.cuda.set_device(device)
    return device


def _is_planned_on_cpu(plan: Plan, rank: int) -> bool:
    cluster = plan.problem.cluster
    kind = find_kind(cluster.devices[cluster.device_index(plan.ranks[rank])].kind)
    return kind is not None and kind.grade == "cpu"


def have_own_gpus(device: torch.device) -> bool:
    """Whether every rank has a GPU that no other rank uses, the same answer on all; they must all ask."""
    name = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    mine = torch.frombuffer(bytearray(sha256(name.encode()).digest()), dtype=torch.uint8)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    ids = {bytes(one.tolist()) for one in everyone}
    return len(ids) == len(everyone) and sha256(b"").digest() not in ids
