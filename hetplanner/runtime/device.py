"""Which device a rank computes on, and whether every rank has a GPU of its own."""

import socket
from hashlib import sha256

import torch
import torch.distributed as dist

from hetplanner.cluster.catalog import DeviceKind, find_kind
from hetplanner.cluster.formats.gpu_lists import Gpu, kind_of_gpu
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.comm.connect import Place
from hetplanner.runtime.comm.wire import CPU


def choose_device(plan: Plan, config: TrainConfig, place: Place) -> torch.device:
    """The rank's device, see `TrainConfig.device_for`; torch takes it for its own where none is named.

    Raises:
        InvalidInput: a GPU was asked for, and torch sees none; or, on several machines, what is there is of another
            kind than planned.
    """
    cluster = plan.problem.cluster
    kind = cluster.devices[cluster.device_index(plan.processes[place.rank])].kind
    device = named_device(config.device_for(kind), place.local_rank)
    if not place.is_one_machine and config.device == "auto":
        _check_kind(device, kind, f"rank {place.rank} (device {plan.processes[place.rank]})")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _check_kind(device: torch.device, planned: str, who: str) -> None:
    """Refuses a GPU of another kind than planned, or a processor in its place. Raises InvalidInput."""
    host, wanted = socket.gethostname(), find_kind(planned)
    if wanted is None:
        return
    if device.type == "cpu" and wanted.grade != "cpu":
        raise InvalidInput(
            f"{who}: the plan has a {planned} on {host}, where torch sees no GPU; install a torch with CUDA, or train"
            " with --device cpu"
        )
    found, name = _found_kind(device)
    if found is not None and found != wanted:
        raise InvalidInput(
            f"{who}: the plan has a {wanted.name} on {host}, which has a {found.name} ({name}); correct the cluster"
            " file and plan again, or train with --device cuda"
        )


def _found_kind(device: torch.device) -> tuple[DeviceKind | None, str]:
    """The catalog's kind of a GPU, None for others and unknown ones; and what its driver calls it."""
    if device.type == "cpu":
        return None, ""
    properties = torch.cuda.get_device_properties(device)
    return kind_of_gpu(Gpu(properties.name, properties.total_memory / 2**30)), properties.name


def named_device(name: str, turn: int = 0) -> torch.device:
    """A device of this host.

    Args:
        name: cpu; cuda, one of the GPUs that CUDA_VISIBLE_DEVICES leaves; cuda:N, exactly that one; auto, a GPU if
            torch sees one.
        turn: number of the process on this host: GPUs are taken in turn.

    Raises:
        InvalidInput: it is none of these, or torch sees no such GPU.
    """
    kind, _, number = name.partition(":")
    if name not in ("cpu", "cuda", "auto") and not (kind == "cuda" and number.isdecimal() and len(number) < 5):
        raise InvalidInput(f"device: must be auto, cpu, cuda or cuda:N, got {name!r:.40}")
    count = torch.cuda.device_count() if name != "cpu" and torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return CPU
    if not count:
        raise InvalidInput(
            f"device: must be auto or cpu on {socket.gethostname()}, where torch sees no GPU, got {name};"
            " install a torch with CUDA, or look at CUDA_VISIBLE_DEVICES"
        )
    index = int(number) if number else turn % count
    if index >= count:
        raise InvalidInput(f"device: must be cuda:0 to cuda:{count - 1} on {socket.gethostname()}, got {name}")
    return torch.device("cuda", index)


def gpu_id(device: torch.device) -> str:
    """What tells a GPU from all others, whichever hosts they are in; empty for the processor."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def have_own_gpus(device: torch.device) -> bool:
    """Whether every rank has a GPU that no other rank uses, the same answer on all; they must all ask."""
    mine = torch.frombuffer(bytearray(sha256(gpu_id(device).encode()).digest()), dtype=torch.uint8)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    ids = {bytes(one.tolist()) for one in everyone}
    return len(ids) == len(everyone) and sha256(b"").digest() not in ids
