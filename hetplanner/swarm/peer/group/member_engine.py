"""One member's end of a peer that is a group of devices.

All members call the same methods in the same order with the same bytes, so that all refuse the same. The sums, states
and messages of the whole stage are on the leader alone: it is to the swarm what a single device is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.codecs.torch_dense import TensorCodec
from hetplanner.elastic.protocol.identity import Stamp, Token
from hetplanner.elastic.protocol.peer_events import FoldDone
from hetplanner.errors import InvalidInput
from hetplanner.runtime.comm.wire import CPU
from hetplanner.runtime.device_group.group import DeviceGroup, Piece
from hetplanner.runtime.device_group.shards import Shard, add_repeated, gather_parts, scatter_parts
from hetplanner.runtime.device_group.shared_memory import shared_zeros
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.layout import own_pieces, tied_ranges
from hetplanner.swarm.peer.engine import StageEngine, Sum
from hetplanner.swarm.peer.state import state_sizes
from hetplanner.swarm.spec import SwarmSpec

NOTHING = torch.empty(0)


class MemberEngine(StageEngine):
    """One device's computations.

    Args:
        spec, device, speeds, folders: see `StageEngine`; speeds and folders are the leader's.
        group: of the member.
    """

    def __init__(
        self,
        spec: SwarmSpec,
        device: torch.device,
        speeds: Sequence[float] | None,
        folders: Sequence[str],
        group: DeviceGroup,
    ) -> None:
        super().__init__(spec, device, speeds, folders)
        self.group = group
        self._folded: Sum | None = None
        self._shared = NOTHING

    def _model(self, stage: int, seed: int | None) -> StageModel:
        model = StageModel(self.spec.workload, *self.spec.ops_of(stage), seed, self.device, self.group)
        sizes = state_sizes(self.spec, stage)
        self._shared = shared_zeros(max(sizes.values()), torch.float32, self.group)
        return model

    def _initial(self, stage: int) -> StageModel:
        """See StageEngine. The leader alone reads folders. Raises InvalidInput on all members."""
        if self.spec.init_digest is None:
            return self._model(stage, self.spec.train.seed)
        whole, error = None, InvalidInput("init_from: the leader of this group cannot take its folder")
        if self.group.is_leader:
            try:
                whole = StageEngine(self.spec, CPU, folders=self.folders)._initial(stage)
            except InvalidInput as refused:
                error = refused
        if not self._all_agree(not self.group.is_leader or whole is not None):
            raise error
        model = self._model(stage, None)
        self._scatter(model.shards, model.flat, None if whole is None else whole.flat)
        self._scatter(model.frozen_shards, model.frozen, None if whole is None else whole.frozen)
        return model

    # The step.

    def fold(self, tokens: Iterable[Token]) -> Sum:
        """See StageEngine; the gradient is this member's part."""
        self._folded = super().fold(tokens)
        add_repeated(self.model.shards, self._folded.gradient, self.group)
        return self._folded

    def offer(self, folded: Sum) -> Sum | None:
        """See StageEngine; of the whole stage on the leader."""
        assert self._folded is not None
        return super().offer(self._folded)

    def keep_sum(self, attempt: Stamp, total: Sum, own: Sum | None = None) -> FoldDone:
        """See StageEngine; `total` is of the whole stage and looked at on the leader alone."""
        folded, self._folded = self._folded, None
        assert folded is not None
        assert self.version is not None
        is_inside = self.spec.is_local and not self.spec.settings.ends_round(self.version.step)
        return super().keep_sum(attempt, folded if is_inside else total, folded)

    def _grad_square(self, total: Sum) -> float | None:
        return super()._grad_square(total) if self.group.is_leader else None

    # Parts of a stage.

    def tied_ranges(self) -> tuple[int, dict[str, tuple[int, int]]]:
        """See StageEngine."""
        return tied_ranges(self.spec.workload, [shard.whole for shard in self.model.shards])

    def _own_part(self, whole: Tensor, stage: int, *, is_gradient: bool = False) -> Tensor:
        return self.group.part_of(whole, self._pieces(stage), self.group.index, is_gradient=is_gradient)

    def _whole_of(self, part: Tensor, stage: int, *, is_gradient: bool = False) -> Tensor:
        whole = self.group.gather(part, self._pieces(stage), is_gradient=is_gradient)
        return NOTHING if whole is None else whole

    def _pieces(self, stage: int) -> list[Piece]:
        """The tensors in front of a stage, and how members divide them."""
        return own_pieces(self.spec.workload, self.spec.first_ops[stage], self.group)

    def _encoded(self, codec: TensorCodec, x: Tensor) -> bytes:
        return super()._encoded(codec, x) if self.group.is_leader else b""

    def _all_agree(self, flag: bool) -> bool:
        return bool(self.group.all_reduce(torch.tensor([float(flag)]), dist.ReduceOp.MIN).item())

    def _copy_of_whole(self, name: str, own: Tensor) -> Tensor:
        return self._gather(self._shards_of(name), own, state_sizes(self.spec, self.stage)[name])

    def _take_part(self, name: str, own: Tensor, whole: Tensor | None) -> None:
        self._scatter(self._shards_of(name), own, whole)

    def _sum_of_whole(self, part: Sum) -> Sum:
        size = state_sizes(self.spec, self.stage)["weights"]
        return Sum(self._gather(self.model.shards, part.gradient, size), part.count, part.loss_sum)

    def _sum_of_part(self, whole: Sum) -> Sum:
        gradient = torch.zeros_like(self.model.flat_grad)
        self._scatter(self.model.shards, gradient, whole.gradient if self.group.is_leader else None)
        return Sum(gradient, whole.count, whole.loss_sum)

    def _shards_of(self, name: str) -> Sequence[Shard]:
        """Of a tensor of the state: optimizer states lie as the weights do."""
        return self.model.frozen_shards if name == "frozen" else self.model.shards

    def _gather(self, shards: Sequence[Shard], own: Tensor, size: int) -> Tensor:
        """What all members hold parts of, on the leader: a copy, [size]."""
        gather_parts(shards, self._shared, own, self.group)
        self.group.barrier()
        found = self._shared[:size].clone() if self.group.is_leader else NOTHING
        self.group.barrier()
        return found

    def _scatter(self, shards: Sequence[Shard], own: Tensor, whole: Tensor | None) -> None:
        """Sets this member's part of what the leader has."""
        if whole is not None:
            self._shared[: whole.numel()].copy_(whole)
        self.group.barrier()
        scatter_parts(shards, self._shared, own)
        self.group.barrier()
