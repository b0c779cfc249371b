"""A checkpoint of another plan: weights and optimizer states by stage, from files that lie on several hosts.

A static run saves a file for each rank, a swarm a file for each stage. Both are read alike: a part of a stage is a
tensor of one file, which one rank reads for another. All ranks call the methods here in one order.
"""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.checkpoints import Manifest, check_rank_file, checkpoint_folder, load_manifest, rank_file
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.files.stage_checkpoints import (
    FOLDER,
    StageVersion,
    check_checkpoint,
    checkpoint_path,
    newest_lineage,
)
from hetplanner.plan.model import Plan
from hetplanner.reading import reading
from hetplanner.runtime.comm.transport import Topic, tag_of
from hetplanner.runtime.model.layout import Weight, frozen_weights, stage_weights
from hetplanner.runtime.train.optimizers import Piece, StateLayout, parts_within
from hetplanner.runtime.train.zero import shard_ranges
from hetplanner.workload.workload import Workload

log = logging.getLogger(__name__)

PIECE_ELEMENTS = 2**20
NUMBERS = ("updates", "loss_scale", "quiet_steps")

Place = tuple[int, int]
"""The rank that reads, and the file."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where some elements of a weight, or of a state of it, are.

    Attributes:
        place: who reads them, from which file.
        tensor: of the file.
        at: their first place in it.
        first, end: which elements of the weight they are.
    """

    place: Place
    tensor: str
    at: int
    first: int
    end: int


class EarlierState(ABC):
    """A checkpoint, as one rank sees it.

    Attributes:
        plan: that it is of.
        rank: this rank.
        step: committed steps.
        ops: by stage, its first op and end (exclusive).
    """

    plan: AnyPlan
    rank: int
    step: int
    ops: tuple[tuple[int, int], ...]

    # -- what differs between the kinds -----------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str:
        """How messages call it."""

    @abstractmethod
    def files_of(self, stage: int, replica: int | None) -> Sequence[int]:
        """The files that have a stage: those of all replicas, or of one."""

    @abstractmethod
    def path_of(self, file: int) -> Path:
        """Where a file is, if this rank's host has it."""

    @abstractmethod
    def tensor_of(self, stage: int, part: str) -> str:
        """What a part of a stage is called in its files."""

    @abstractmethod
    def check(self, file: int) -> None:
        """Refuses a file that is not what was written. Raises InvalidInput."""

    @abstractmethod
    def _files_here(self) -> Tensor:
        """By file, uint8, whether this rank's host has it, by its size."""

    @abstractmethod
    def _numbers_in(self, metadata: Mapping[str, str]) -> Mapping[str, float]:
        """Of a file's metadata those of NUMBERS."""

    # -- where files are --------------------------------------------------------------------------

    @cached_property
    def holders(self) -> list[list[int]]:
        """By rank, the files that its host has."""
        here = self._files_here()
        rows = [torch.empty_like(here) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, here)
        return [row.nonzero().flatten().tolist() for row in rows]

    def place_of(self, stage: int, target: int, replica: int | None = None) -> Place | None:
        """Who reads a stage for a rank, and from which file; of any replica unless one is named."""
        return self._place(self.files_of(stage, replica), target)

    def place_of_file(self, file: int, target: int) -> Place | None:
        """Who reads a file for a rank."""
        return self._place([file], target)

    def _place(self, wanted: Sequence[int], target: int) -> Place | None:
        for reader in (target, *range(len(self.holders))):
            for file in wanted:
                if file in self.holders[reader]:
                    return reader, file
        return None

    @property
    def sharded_files(self) -> Sequence[int]:
        """Files that are all needed, since each has a shard of the optimizer's states; none without ZeRO."""
        return ()

    def sources(self, weight: Weight, part: str, target: int) -> Iterator["Source"]:
        """Where a whole weight, or a state of it, is for a rank. `why_not` has looked at all files."""
        stage = self.stage_of(weight.op_index)
        place, piece = self.place_of(stage, target), self.pieces[stage][weight.name][part]
        assert place is not None
        yield Source(place, self.tensor_of(stage, part), piece.first, 0, piece.end - piece.first)

    def take_weight(self, weight: Weight, part: str, target: int, out: Tensor) -> None:
        """Brings a whole weight, or a state of it, to a rank; all ranks must call it, in one order.

        Args:
            weight: as any stage holds it.
            part: 'weights', 'frozen' or of the optimizer's states.
            target: the rank that wants it.
            out: on the target where it goes, 1-D; on all others of the same length, and not looked at.
        """
        for source in self.sources(weight, part, target):
            self._take(source.tensor, source.place, target, source.at, out[source.first : source.end])

    def why_not(self, needed: Sequence[set[int]]) -> str:
        """Why it cannot be loaded, the same on all ranks; '' if it can.

        Args:
            needed: by rank, the stages that it takes something from.
        """
        missing = [stage for stage in range(len(self.ops)) if self.place_of(stage, 0) is None]
        if missing:
            return f"no host has a part of stage {missing[0]} of the earlier plan"
        places = [self.place_of(stage, rank) for rank, stages in enumerate(needed) for stage in stages]
        for file in self.sharded_files:
            places.append(self.place_of_file(file, 0))
            if places[-1] is None:
                return f"no host has the optimizer states of rank {file} of the earlier plan"
        mine = {place[1] for place in places if place is not None and place[0] == self.rank}
        why = ""
        for file in sorted(mine):
            try:
                self.check(file)
            except InvalidInput as error:
                why = str(error)
                log.warning("checkpoint skipped: %s", error)
        return (why or "another host's part is damaged") if greatest(int(bool(why))) else ""

    # -- reading ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self, file: int) -> Iterator[Any]:
        """A file on this host. Raises InvalidInput when it is damaged, also inside."""
        path = self.path_of(file)
        with reading(f"{path.parent.name}/{path.name}", "checkpoint"), safe_open(path, framework="pt") as opened:
            yield opened

    def _take(self, name: str, place: Place, target: int, first: int, out: Tensor) -> None:
        """Brings elements of a tensor to a rank; all ranks must call it, in one order.

        Args:
            name: of the tensor, 1-D.
            place: see `place_of`.
            target: the rank that wants them.
            first: of the elements.
            out: on the target where they go, 1-D; on all others of the same length, and not looked at.
        """
        reader, source = place
        if self.rank not in (reader, target):
            return
        for begin in range(0, out.numel(), PIECE_ELEMENTS):
            end = min(begin + PIECE_ELEMENTS, out.numel())
            if self.rank == reader:
                with self.opened(source) as file:
                    piece = file.get_slice(name)[first + begin : first + end]
            else:
                piece = torch.empty(end - begin, dtype=out.dtype)
                dist.recv(piece, reader, tag=tag_of(Topic.WEIGHTS, 0))
            if self.rank == target:
                out[begin:end].copy_(piece)
            else:
                dist.send(piece.contiguous(), target, tag=tag_of(Topic.WEIGHTS, 0))

    @cached_property
    def pieces(self) -> list[dict[str, dict[str, Piece]]]:
        """By stage, see `stage_pieces`."""
        workload = self.plan.problem.workload
        return [stage_pieces(workload, first_op, end_op) for first_op, end_op in self.ops]

    def stage_of(self, op: int) -> int:
        """The stage that has an op."""
        return max(stage for stage, (first_op, _) in enumerate(self.ops) if first_op <= op)

    @cached_property
    def numbers(self) -> dict[str, float]:
        """What all ranks carry alike: the optimizer's updates, and the scale of the loss in float16."""
        found = dict.fromkeys(NUMBERS, 0.0)
        for file in self.holders[self.rank]:
            with self.opened(file) as opened:
                values = self._numbers_in(opened.metadata() or {})
            found |= {name: max(found[name], values.get(name, 0.0)) for name in NUMBERS}
        most = torch.tensor(list(found.values()), dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return dict(zip(NUMBERS, most.tolist(), strict=True))


class RankFiles(EarlierState):
    """A static run's: a file for each rank.

    Args:
        plan: of the run.
        rank: this rank.
        run_dir: of the run, on this rank's host.
        step: committed steps.
    """

    plan: Plan

    def __init__(self, plan: Plan, rank: int, run_dir: Path, step: int) -> None:
        self.plan, self.rank, self.step = plan, rank, step
        self.ops = tuple((stage.first_op, stage.end_op) for stage in plan.stages)
        self._folder = checkpoint_folder(run_dir, step)

    @property
    def name(self) -> str:
        """See EarlierState."""
        return self._folder.name

    @cached_property
    def _manifest(self) -> Manifest | None:
        with contextlib.suppress(InvalidInput):
            manifest = load_manifest(self._folder)
            return manifest if manifest.plan == self.plan.digest() else None
        return None

    @property
    def sharded_files(self) -> Sequence[int]:
        """See EarlierState."""
        return range(len(self.plan.ranks)) if self.plan.zero else ()

    def sources(self, weight: Weight, part: str, target: int) -> Iterator[Source]:
        """See EarlierState."""
        if not self.plan.zero or part in ("weights", "frozen"):
            yield from super().sources(weight, part, target)
            return
        done = 0
        for first, end, rank, stage, at in self._shards_by_weight[weight.name]:
            # Where two sites exchange their sums, two ranks have the same.
            if end > done:
                place = self.place_of_file(rank, target)
                assert place is not None  # see `why_not`
                skipped = max(done - first, 0)
                yield Source(place, self.tensor_of(stage, part), at + skipped, first + skipped, end)
                done = end

    @cached_property
    def _shards_by_weight(self) -> dict[str, list[tuple[int, int, int, int, int]]]:
        """By weight, sorted: first and end of the elements in a rank's shard, the rank, its stage, and where the states
        of these elements begin in its file.
        """
        found: dict[str, list[tuple[int, int, int, int, int]]] = {}
        for rank, places in enumerate(self.plan.places_of_rank):
            for stage, _ in places:
                ranges = shard_ranges(self.plan, rank, stage)
                for _, weight in stage_weights(self.plan.problem.workload, *self.ops[stage]):
                    for first, end, at in parts_within(ranges, weight.first, weight.end):
                        here = first - weight.first, end - weight.first
                        found.setdefault(weight.name, []).append((*here, rank, stage, at))
        return {name: sorted(parts) for name, parts in found.items()}

    def files_of(self, stage: int, replica: int | None) -> Sequence[int]:
        """See EarlierState."""
        replicas = range(len(self.plan.stages[stage].replicas)) if replica is None else (replica,)
        return [self.plan.rank_at(stage, each) for each in replicas]

    def path_of(self, file: int) -> Path:
        """See EarlierState."""
        return self._folder / rank_file(file)

    def tensor_of(self, stage: int, part: str) -> str:
        """See EarlierState."""
        return f"stage.{stage}.{part}"

    def check(self, file: int) -> None:
        """See EarlierState."""
        assert self._manifest is not None
        check_rank_file(self._folder, self._manifest, file)

    def _files_here(self) -> Tensor:
        here = torch.zeros(len(self.plan.ranks), dtype=torch.uint8)
        for file, entry in enumerate(self._manifest.ranks if self._manifest is not None else ()):
            with contextlib.suppress(OSError):
                here[file] = (self._folder / entry.file).stat().st_size == entry.bytes
        return here

    def _numbers_in(self, metadata: Mapping[str, str]) -> Mapping[str, float]:
        return {name.rpartition(".")[2]: float(value) for name, value in metadata.items()}


class StageFiles(EarlierState):
    """A swarm's: a file for each stage. Arguments as of `RankFiles`; all ranks must make it at once."""

    plan: ElasticPlan

    def __init__(self, plan: ElasticPlan, rank: int, run_dir: Path, step: int) -> None:
        self.plan, self.rank, self.step = plan, rank, step
        self.ops = tuple((stage.first_op, stage.end_op) for stage in plan.stages)
        self._folder = run_dir / FOLDER
        self._version: StageVersion = (greatest(newest_lineage(self._folder, step)), step)

    @property
    def name(self) -> str:
        """See EarlierState."""
        return f"checkpoint of step {self.step}"

    def files_of(self, stage: int, replica: int | None) -> Sequence[int]:
        """See EarlierState."""
        return [stage]

    def path_of(self, file: int) -> Path:
        """See EarlierState."""
        return checkpoint_path(self._folder, file, self._version)

    def tensor_of(self, stage: int, part: str) -> str:
        """See EarlierState."""
        return part

    def check(self, file: int) -> None:
        """See EarlierState."""
        check_checkpoint(self.path_of(file))

    def _files_here(self) -> Tensor:
        there = [self.path_of(stage).is_file() for stage in range(len(self.plan.stages))]
        return torch.tensor(there, dtype=torch.uint8)

    def _numbers_in(self, metadata: Mapping[str, str]) -> Mapping[str, float]:
        return {"updates": float(metadata["num_steps"])} if "num_steps" in metadata else {}


def stage_pieces(workload: Workload, first_op: int, end_op: int) -> dict[str, dict[str, Piece]]:
    """Of a stage, by weight: where its files have the values and each optimizer state, in a part's flat tensor."""
    layout = StateLayout.of(workload, first_op, end_op)
    found = {
        weight.name: {"weights": Piece(weight.first, weight.shape)} | layout.pieces[weight.name]
        for _, weight in stage_weights(workload, first_op, end_op)
    }
    for _, weight in frozen_weights(workload, first_op, end_op):
        found[weight.name] = {"frozen": Piece(weight.first, weight.shape)}
    return found


def earlier_state(plan: AnyPlan, rank: int, run_dir: Path, step: int) -> EarlierState:
    """The checkpoint of a run of this plan; all ranks must call it at once."""
    if isinstance(plan, ElasticPlan):
        return StageFiles(plan, rank, run_dir, step)
    return RankFiles(plan, rank, run_dir, step)


def greatest(value: int) -> int:
    """The greatest of all ranks' values."""
    most = torch.tensor([value])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)
