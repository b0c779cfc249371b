"""Whether a plan's hosts can run it, told from what they say: all that is wrong, each with host and remedy."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hetplanner.cluster.catalog import find_kind
from hetplanner.cluster.formats.gpu_lists import kind_of_gpu, read_gpus
from hetplanner.cluster.model import MAX_DEVICES
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.launchers.disk import DiskNeed, disk_need
from hetplanner.launchers.hosts_file import PlacedHost, is_public
from hetplanner.launchers.torchrun import PUBLIC, UNENCRYPTED
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.files.resumable import other_plan
from hetplanner.plan.files.stage_checkpoints import steps_of_names
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import planned_gpus, workers_of
from hetplanner.plan.train import TrainConfig
from hetplanner.schema import Noun
from hetplanner.units import short_bytes, short_seconds

MAX_CLOCK_OFF_S = 5.0

Short = Annotated[str, Field(max_length=1000)]
Number = Annotated[int, Field(ge=0)]
Numbers = Annotated[tuple[Number, ...], Field(max_length=MAX_DEVICES)]


class Facts(Noun):
    """What a host says of itself; it is trusted no further than its own ranks.

    Attributes:
        hetplanner, torch, python: versions; None: not installed.
        system: as Python calls it.
        unix_s: its clock.
        address: its own, as a number; `address_error`: why it is none of the host's.
        port_error: why the store cannot listen there.
        data: what stands for the data's content; `data_error`: why there is none.
        gpus: what `nvidia-smi -L` prints.
        checkpoints: of the run to go on from: by step, the ranks whose parts the host has.
        stage_files: of a swarm to go on from: names of its checkpoints on the host.
    """

    hetplanner: Short | None
    torch: Short | None
    python: Short
    system: Short = "linux"
    unix_s: float
    address: Short = ""
    address_error: Short = ""
    port_error: Short = ""
    data: Short = ""
    data_error: Short = ""
    gpus: Annotated[str, Field(max_length=100_000)] = ""
    free_bytes: Annotated[int, Field(ge=0)] = 0
    folder_error: Short = ""
    checkpoints: Annotated[dict[Number, Numbers], Field(max_length=100)] = Field(default_factory=dict)
    stage_files: Annotated[tuple[Short, ...], Field(max_length=10_000)] = ()


@dataclass
class Found:
    """What is known of one host.

    Attributes:
        error: why nothing else is.
        clock_s, clock_error_s: how far its clock is ahead of this one, and by how much that may be wrong.
    """

    host: PlacedHost
    facts: Facts | None = None
    error: HetplannerError | None = None
    clock_s: float = 0.0
    clock_error_s: float = 0.0
    unreached: dict[str, str] = field(default_factory=dict)


def problems(plan: AnyPlan, config: TrainConfig, found: Sequence[Found], own_version: str) -> list[tuple[str, str]]:
    """Everything that is wrong: host and sentence.

    Args:
        plan, config: what shall run.
        found: of every host, in the order of their node rank.
        own_version: of hetplanner here.
    """
    told = [(each.host.name, str(each.error)) for each in found if each.error is not None]
    known = [(each, each.facts) for each in found if each.facts is not None]
    need = disk_need(plan, config)
    for each, facts in known:
        told += [(each.host.name, text) for text in _of_one(plan, config, need, each, facts, own_version) if text]
        if len(found) > 1 and facts.address.startswith("127."):
            text = f"its address {each.host.address} is {facts.address}, where no other host reaches it"
            told.append((each.host.name, f"{text}; give another one in the hosts file (address)"))
        for other, why in each.unreached.items():
            text = f"does not reach host {other} ({why}); open the network between them, or correct its address"
            told.append((each.host.name, text))
    told += _unlike(known, "torch", "torch", "install one version on all")
    told += _unlike(known, "python", "Python", "take one minor version on all")
    told += _unlike(known, "data", "data", "give all hosts the same files")
    told += _doubled_addresses(known)
    return [*told, *_checkpoints(plan, config, known)]


def _of_one(
    plan: AnyPlan, config: TrainConfig, need: DiskNeed, found: Found, facts: Facts, own_version: str
) -> list[str]:
    host = found.host
    texts = [
        "" if facts.system == "linux" else f"runs {facts.system}; ranks over hosts need Linux",
        f"has hetplanner {facts.hetplanner}, this is {own_version}; install one version on all"
        if facts.hetplanner != own_version
        else "",
        "" if facts.torch else f"{host.python} has no torch; install it there",
        f"its address {host.address} is not assigned to this host ({facts.address_error});"
        " correct address in the hosts file"
        if facts.address_error
        else "",
        f"the store cannot listen at {host.address} ({facts.port_error});"
        " end the process that uses it, or give another port"
        if facts.port_error
        else "",
        f"data: {facts.data_error}; copy it there" if facts.data_error else "",
        f"its folder {facts.folder_error}; give another one in the hosts file (folder)" if facts.folder_error else "",
        _clock_words(found),
        _gpu_words(Counter(kind.name for kind in planned_gpus(plan, config.device, host.ranks)), facts.gpus),
        _disk_words(plan, need, host, facts),
    ]
    return [text for text in texts if text]


def _clock_words(found: Found) -> str:
    off_s = abs(found.clock_s) - found.clock_error_s
    if off_s <= MAX_CLOCK_OFF_S:
        return ""
    which = "ahead of" if found.clock_s > 0 else "behind"
    return f"its clock is {short_seconds(abs(found.clock_s))} {which} this one; set it (`timedatectl set-ntp true`)"


def _gpu_words(planned: Counter[str], text: str) -> str:
    if not planned:
        return ""
    wanted = ", ".join(f"{count} × {kind}" for kind, count in planned.items())
    try:
        gpus = read_gpus(text) if text.strip() else []
    except InvalidInput as error:
        return f"its GPUs cannot be told: {error}"
    if len(gpus) < planned.total():
        there = f"nvidia-smi lists {len(gpus)}" if gpus else "nvidia-smi lists none"
        return f"the plan has {wanted} there, and {there}; correct the cluster and plan again, or take --device cpu"
    kinds = Counter(kind.name if (kind := kind_of_gpu(gpu)) else gpu.name for gpu in gpus)
    if all(find_kind(name) for name in kinds) and planned - kinds:
        there = ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
        return f"the plan has {wanted} there, and it has {there}; correct the cluster and plan again"
    return ""


def disk_of_host(plan: AnyPlan, need: DiskNeed, host: PlacedHost) -> int:
    """Bytes without which a host's part cannot be had: a checkpoint of its ranks, and the model where that is."""
    share = len(host.ranks) / len(workers_of(plan))
    return int(need.checkpoint * share) + (need.model if 0 in host.ranks else 0)


def _disk_words(plan: AnyPlan, need: DiskNeed, host: PlacedHost, facts: Facts) -> str:
    least = disk_of_host(plan, need, host)
    if facts.folder_error or facts.free_bytes >= least:
        return ""
    return (
        f"its part of a checkpoint and the model take {short_bytes(least)}, and {short_bytes(facts.free_bytes)} are"
        f" free in {host.folder}; free some, or give another folder in the hosts file"
    )


def _unlike(known: Sequence[tuple[Found, Facts]], name: str, what: str, remedy: str) -> list[tuple[str, str]]:
    """Hosts that differ from what most have; versions count without a local part such as `+cpu`."""
    values = {each.host.name: (getattr(facts, name) or "").partition("+")[0] for each, facts in known}
    values = {host: value for host, value in values.items() if value}
    if not values:
        return []
    (usual, _), *_ = Counter(values.values()).most_common(1)
    one = next(host for host, value in values.items() if value == usual)
    return [
        (host, f"its {what} is {value}, that of host {one} is {usual}; {remedy}")
        for host, value in values.items()
        if value != usual
    ]


def _doubled_addresses(known: Sequence[tuple[Found, Facts]]) -> list[tuple[str, str]]:
    first: dict[str, str] = {}
    told = []
    for each, facts in known:
        other = first.setdefault(facts.address, each.host.name) if facts.address else each.host.name
        if other != each.host.name:
            text = f"its address {facts.address} is that of host {other}, too; give each its own in the hosts file"
            told.append((each.host.name, text))
    return told


def _checkpoints(plan: AnyPlan, config: TrainConfig, known: Sequence[tuple[Found, Facts]]) -> list[tuple[str, str]]:
    """What is missing to go on: every host needs its own ranks' parts, or all hosts together each stage's."""
    if config.resume is None or not known:
        return []
    if isinstance(plan, ElasticPlan):
        return _checkpoints_of_swarm(plan, config, known)
    if (old := other_plan(Path(config.resume), plan)) is not None:
        if _hold_a_checkpoint(old, known):
            return []
        why = "no checkpoint of the run has a part of every stage on these hosts"
        return [(known[0][0].host.name, f"{why}; add a host that has the rest, or start again without --resume")]
    # Of a group its first process writes.
    written = [{rank for rank in each.host.ranks if rank < len(plan.ranks)} for each, _ in known]
    whole = [
        {step for step, parts in facts.checkpoints.items() if ranks <= set(parts)}
        for ranks, (_, facts) in zip(written, known, strict=True)
    ]
    if set.intersection(*whole):
        return []
    bare = next((each.host.name for (each, _), steps in zip(known, whole, strict=True) if not steps), None)
    text = "has no checkpoint of the run that all hosts have; start again without --resume"
    return [(bare or known[0][0].host.name, text)]


def _checkpoints_of_swarm(
    plan: ElasticPlan, config: TrainConfig, known: Sequence[tuple[Found, Facts]]
) -> list[tuple[str, str]]:
    lead, names = known[0][0].host.name, [name for _, facts in known for name in facts.stage_files]
    steps = steps_of_names(names, len(plan.stages))
    if not steps:
        text = "no checkpoint of the run has every stage on these hosts; start again without --resume"
        return [(lead, text)]
    if steps[0] >= config.steps:
        return [(lead, f"the run has done {steps[0]} steps, so {config.steps} leave nothing to do; give more steps")]
    return []


def _hold_a_checkpoint(old: AnyPlan, known: Sequence[tuple[Found, Facts]]) -> bool:
    """Whether the hosts together have a checkpoint of another plan."""
    if isinstance(old, ElasticPlan):
        return bool(steps_of_names([name for _, facts in known for name in facts.stage_files], len(old.stages)))
    return any(_holds_all_stages(old, step, known) for _, facts in known for step in facts.checkpoints)


def _holds_all_stages(old: Plan, step: int, known: Sequence[tuple[Found, Facts]]) -> bool:
    here = {rank for _, facts in known for rank in facts.checkpoints.get(step, ())}
    return all(
        any(old.rank_at(stage, replica) in here for replica in range(len(each.replicas)))
        for stage, each in enumerate(old.stages)
    )


def warnings(found: Sequence[Found]) -> list[str]:
    """What does not keep the run from starting, and should be known."""
    if len(found) < 2:
        return []
    public = [(each.host.name, each.facts.address) for each in found if each.facts and is_public(each.facts.address)]
    return [PUBLIC.format(name=name, address=address, rest=UNENCRYPTED) for name, address in public]


def told_of_absence(told: Sequence[tuple[str, str]], waited_s: float, run: str) -> str:
    """That hosts of a run do not come back, and how it goes on without them.

    Args:
        told: hosts that cannot be reached, each with why.
        waited_s: for how long they were waited for.
        run: its id.
    """
    without = " ".join(f"--without {shlex.quote(name)}" for name, _ in told)
    others = f" (nor has {len(told) - 1} more)" if len(told) > 1 else ""
    return (
        f"host {told[0][0]} has not come back for {short_seconds(waited_s)}{others}: {told[0][1]}; to go on without it:"
        f" `hetplanner train PLAN --resume {run} {without}`"
    )


def told_at_once(told: Sequence[tuple[str, str]]) -> str:
    """All problems in one line."""
    count = f"{len(told)} problems on" if len(told) > 1 else "a problem on"
    names = list(dict.fromkeys(name for name, _ in told))
    which = f"{len(names)} hosts" if len(names) > 1 else "1 host"
    return f"hosts: {count} {which}, nothing was started. " + "; ".join(f"[{name}] {text}" for name, text in told)
