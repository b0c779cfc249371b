"""Writing and reading checkpoints: all that a rank carries from one step to the next.

Data and every random draw are functions of (seed, step, micro-batch), so the number of steps done is their state.
"""

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from hetplanner.atomic_files import check_free, synchronise
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.checkpoints import (
    PART,
    Manifest,
    RankFile,
    check_rank_file,
    checkpoint_folder,
    file_digest,
    load_manifest,
    prune,
    publish,
    rank_file,
    readable_steps,
)
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.reading import reader
from hetplanner.runtime.checkpoint.background import Background
from hetplanner.runtime.checkpoint.carry_over import carry_over
from hetplanner.runtime.checkpoint.tensor_files import save_tensors
from hetplanner.runtime.comm.connect import Place
from hetplanner.runtime.measure.telemetry import Telemetry
from hetplanner.runtime.train.executor import Executor
from hetplanner.storage.sending import BY_AGENT_VARIABLE, CheckpointCopies

log = logging.getLogger(__name__)

QUICK_S = 0.5
"""A stop has seconds: the checkpoint at its end is written only if one takes no longer than this."""


def copies_here(config: TrainConfig, place: Place) -> bool:
    """Whether this rank sends its host's checkpoints to the address of the settings: the first of every host."""
    return config.copy_to is not None and place.local_rank == 0 and BY_AGENT_VARIABLE not in os.environ


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a checkpoint, the same on all ranks: how long it took, and whether it could not be written."""

    step: int
    seconds: float
    has_failed: bool


class Checkpoints:
    """Writes one rank's part of a run's checkpoints; all ranks call the same methods after the same steps.

    With `checkpoints_async` a thread writes them. One that falls due meanwhile waits until the one before is written.

    Attributes:
        seconds: that the last one took whose end was waited for; infinite before there is one.
        has_failed: whether that one could not be written; the same on all ranks.
        copies: where the settings name an address, on one rank of every host.
    """

    def __init__(self, config: TrainConfig, place: Place, run_dir: Path, telemetry: Telemetry) -> None:
        self.config, self.place, self.run_dir, self.telemetry = config, place, run_dir, telemetry
        self.seconds, self._last_step, self.has_failed = float("inf"), -1, False
        self._newest = -1  # that is whole
        self._paused_s = 0.0  # the steps waited for the last one to begin
        self.copies = CheckpointCopies(config, run_dir, self._tell_copy) if copies_here(config, place) else None
        self._background: Background[Written] | None = Background() if config.checkpoints_async else None

    def is_due(self, completed_steps: int) -> bool:
        """Whether the settings want one after so many steps: at their interval, and at the end."""
        if self._background is not None:
            self._background.check()
        if self.copies is not None:
            self.copies.look(self._newest)
        every = self.config.checkpoint_every
        return every is not None and (completed_steps % every == 0 or completed_steps == self.config.steps)

    @property
    def is_writing(self) -> bool:
        """Whether one is being written beside the steps."""
        return self._background is not None and self._background.is_busy

    def write(self, executor: Executor, *, wait: bool = False) -> None:
        """Writes the state as it is. What cannot be written is said, and the training goes on.

        Args:
            executor: the rank's.
            wait: return when it is written, whatever the settings say.
        """
        asked_s, step = time.monotonic(), executor.completed_steps
        self.settle()
        if step == self._last_step:
            return
        began_s, self._last_step = time.monotonic(), step
        for whole in executor.wholes:
            whole.gather_state()
        self.telemetry.flush()  # a run that resumes here finds all earlier steps in it, even if this rank is killed
        large: dict[str, Tensor] = {}
        small: dict[str, Tensor] = {}
        if executor.group.is_leader:
            large, small = _large_tensors(executor), _copied_small(executor)
        finish = partial(self._write, step, executor.plan, began_s, small, numbers_of(executor))
        if self._background is None:
            self._note(finish(_on_cpu(large)))
            return
        executor.before_update = self._background.wait_for_copy
        self._paused_s = time.monotonic() - asked_s
        self._background.begin(large, finish)
        if wait:
            self.settle()

    def settle(self) -> None:
        """Waits for what is being written beside the steps; all ranks must call it."""
        if self._background is not None and (written := self._background.take()) is not None:
            self._note(written)

    def _note(self, written: Written) -> None:
        self.has_failed = written.has_failed
        if written.has_failed:
            self._last_step = -1
            return
        self.seconds = written.seconds
        if self.copies is not None:
            self.copies.look(written.step)

    def _write(
        self,
        step: int,
        plan: Plan,
        began_s: float,
        small: Mapping[str, Tensor],
        numbers: Mapping[str, float],
        large: Mapping[str, Tensor],
    ) -> Written:
        """Writes what a rank carries, and finishes the checkpoint with the others. A group's leader writes for it."""
        group = self._background.group if self._background is not None else None
        folder = checkpoint_folder(self.run_dir, step)
        temporary = folder.with_name(folder.name + PART)
        leads = self.place.rank < len(plan.ranks)
        mine = self._write_file(step, {**large, **small}, numbers, temporary) if leads else (0, "0" * 64)
        written = _gathered(mine, group)[: len(plan.ranks)]
        failed = [(rank, -size) for rank, (size, _) in enumerate(written) if size <= 0]
        error = f"rank {failed[0][0]} could not write its part: {os.strerror(failed[0][1])}" if failed else ""
        if self.place.local_rank == 0:  # one of every host
            error = error or self._publish(temporary, folder, step, plan.digest(), written)
            if error:  # what is of no use gives its space back at once
                shutil.rmtree(temporary, ignore_errors=True)
        seconds, failures = _greatest(time.monotonic() - began_s, float(bool(error)), group=group)
        if failures:
            error = error or "another host could not finish it"
            self.telemetry.write("checkpoint", step=step, error=error, time_s=time.time())
            return Written(step, seconds, has_failed=True)
        if self.place.local_rank == 0:  # not before all hosts have the new one
            prune(self.run_dir, self.config.checkpoints_kept, self.config.checkpoints_max_age_s)
        size, paused_s = mine[0], seconds
        if self._background is not None:
            paused_s = self._paused_s + self._background.waited_s
        self.telemetry.write(
            "checkpoint",
            step=step,
            seconds=round(seconds, 6),
            paused_s=round(paused_s, 6),
            bytes=size,
            time_s=time.time(),
        )
        self._newest = step
        return Written(step, seconds, has_failed=False)

    def _tell_copy(self, told: dict[str, Any]) -> None:
        self.telemetry.write("copy", **told, time_s=time.time())

    def _publish(
        self, temporary: Path, folder: Path, step: int, digest: str, written: Sequence[tuple[int, str]]
    ) -> str:
        """Finishes this host's folder. Returns why it cannot be finished."""
        files = [RankFile(file=rank_file(rank), bytes=size, sha256=sha) for rank, (size, sha) in enumerate(written)]
        manifest = Manifest(step=step, plan=digest, seed=self.config.seed, ranks=tuple(files))
        try:
            publish(temporary, folder, manifest)
        except OSError as error:
            log.warning("the checkpoint of step %d cannot be finished: %s", step, error)
            return f"rank {self.place.rank} could not finish it: {error.strerror or error}"
        return ""

    def _write_file(
        self, step: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, float], folder: Path
    ) -> tuple[int, str]:
        """Size and digest of this rank's file; where it could not be written minus the system's number for why."""
        path = folder / rank_file(self.place.rank)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_free(folder, sum(tensor.nbytes for tensor in tensors.values()))
            save_tensors(tensors, path, {name: repr(number) for name, number in numbers.items()})
            synchronise(path)
            return path.stat().st_size, file_digest(path)
        except OSError as error:
            log.warning("the checkpoint of step %d cannot be written: %s", step, error)
            return -(error.errno or errno.EIO), "0" * 64


def _gathered(mine: tuple[int, str], group: dist.ProcessGroup | None) -> list[tuple[int, str]]:
    """Every rank's size and digest, on every rank."""
    row = torch.tensor([*mine[0].to_bytes(8, "little", signed=True), *bytes.fromhex(mine[1])], dtype=torch.uint8)
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row, group)
    found = [bytes(row.tolist()) for row in rows]
    return [(int.from_bytes(data[:8], "little", signed=True), data[8:].hex()) for data in found]


def _greatest(*values: float, group: dist.ProcessGroup | None) -> list[float]:
    """Of each number the greatest of all ranks."""
    greatest = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(greatest, dist.ReduceOp.MAX, group)
    return [float(value) for value in greatest]


def state_of(executor: Executor) -> tuple[dict[str, Tensor], dict[str, float]]:
    """What a rank carries from step to step, by name: tensors (on the CPU) and numbers."""
    return _on_cpu(_large_tensors(executor)) | _copied_small(executor), numbers_of(executor)


def numbers_of(executor: Executor) -> dict[str, float]:
    """The numbers of `state_of`."""
    numbers: dict[str, float] = {"step": executor.completed_steps}
    for chunk in executor.whole_chunks:
        numbers[f"stage.{chunk.stage}.updates"] = chunk.optimizer.num_steps
    if scale := executor.update.scale:
        numbers |= {"loss_scale": scale.value, "quiet_steps": scale.quiet_steps}
    return numbers


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def _copied_small(executor: Executor) -> dict[str, Tensor]:
    """On the CPU; a file must not hold two views of one storage."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in _small_tensors(executor).items()}


def _large_tensors(executor: Executor) -> dict[str, Tensor]:
    """Weights and optimizer states: each a storage of its own."""
    found: dict[str, Tensor] = {}
    for chunk in executor.whole_chunks:
        parts = {**chunk.model.parts(), **chunk.optimizer.states}
        found |= {f"stage.{chunk.stage}.{name}": tensor for name, tensor in parts.items()}
    return found


def _small_tensors(executor: Executor) -> dict[str, Tensor]:
    """Running statistics, as this replica has them, and what reductions carry."""
    found = {f"reduction.{name}": tensor for name, tensor in executor.reductions.state().items()}
    for chunk in executor.whole_chunks:
        found |= {f"stage.{chunk.stage}.running.{name}": t for name, t in chunk.model.running.items()}
        found |= {f"stage.{chunk.stage}.counted.{name}": t for name, t in chunk.model.counted.items()}
    return found


@reader("checkpoint", at="path")
@torch.no_grad()
def load_state(executor: Executor, path: Path) -> None:
    """Takes back what `state_of` gave. Raises InvalidInput when it is another plan's."""
    mine = _large_tensors(executor) | _small_tensors(executor)
    with safe_open(path, framework="pt") as file:
        numbers, names = file.metadata(), set(file.keys())
        if names != mine.keys():
            odd = sorted(names ^ mine.keys())[:3]
            raise InvalidInput(f"{path.parent.name}/{path.name}: does not fit this plan, see {', '.join(odd)}")
        reduction = {}
        # The other members of a group share the leader's memory.
        for name, tensor in mine.items() if executor.group.is_leader else ():
            value = file.get_tensor(name)
            if name.startswith("reduction."):
                reduction[name.removeprefix("reduction.")] = value
            else:
                tensor.copy_(value)
    if executor.group.is_leader:
        executor.reductions.load_state(reduction)
    for chunk in executor.whole_chunks:
        chunk.optimizer.num_steps = int(numbers[f"stage.{chunk.stage}.updates"])
    if scale := executor.update.scale:
        scale.value, scale.quiet_steps = float(numbers["loss_scale"]), int(numbers["quiet_steps"])
    executor.completed_steps = int(numbers["step"])
    for whole in executor.wholes:
        whole.scatter_state()


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a rank goes on: after so many steps of `run_dir` (0: from the beginning), and what was passed over.

    `other_plan` is the digest of the plan that the checkpoint is of, where that is not the rank's own.
    """

    step: int
    run_dir: Path | None
    skipped: tuple[str, ...]
    other_plan: str = ""


def restore(
    executor: Executor, place: Place, run_dirs: Sequence[Path], advance: Callable[[], None] = lambda: None
) -> Restored:
    """Loads the latest checkpoint that every rank can read, else one of another plan; all ranks must call it.

    Args:
        executor: the rank's; changed if there is one.
        place: this rank.
        run_dirs: where to look, in this order.
        advance: called as the loading gets on.
    """
    skipped: list[str] = []
    digest = executor.plan.digest()
    for run_dir in run_dirs:
        bound, before = 2**62, len(skipped)
        while True:
            mine = _latest_readable(run_dir, digest, executor.rank, bound, skipped)
            both = torch.tensor([mine, -mine])
            dist.all_reduce(both, dist.ReduceOp.MIN)
            least, most = int(both[0]), -int(both[1])
            if least == most:
                break
            bound = least  # some rank cannot read what others can
        if most > 0:
            load_state(executor, checkpoint_folder(run_dir, most) / rank_file(executor.rank))
            return Restored(most, run_dir, tuple(skipped))
        passed_over = skipped[before:]
        step, other = carry_over(executor, place.rank, run_dir, skipped, advance)
        if step:
            return Restored(step, run_dir, tuple(text for text in skipped if text not in passed_over), other)
    return Restored(0, None, tuple(skipped))


def _latest_readable(run_dir: Path, digest: str, rank: int, bound: int, skipped: list[str]) -> int:
    """The latest checkpoint up to `bound` whose part for this rank is whole; 0 if there is none."""
    for item in readable_steps(run_dir, digest):
        try:
            if isinstance(item, str):
                raise InvalidInput(item)
            if item > bound:
                continue
            folder = checkpoint_folder(run_dir, item)
            check_rank_file(folder, load_manifest(folder), rank)
            return item
        except InvalidInput as error:
            if str(error) not in skipped:
                skipped.append(str(error))
                log.warning("checkpoint skipped: %s", error)
    return 0
