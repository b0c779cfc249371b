"""PowerSGD: a bucket's gradients as the product of two thin factors, which are what ranks add up.

The bucket M (with what was lost before) is folded into a matrix [R, C]. From the last step's Q [C, r], which all
members share:

    P = the members' sum of M Q, made orthonormal        reduced: R x r elements
    Q = the members' sum of transposed M times P         reduced: C x r elements
    the sum of all M is about P times transposed Q; each member keeps M - P (its own Q) for the next step

So over all steps only what is kept at the end is missing. One flat bucket is folded, not every weight by itself: the
factors of a square are the thinnest. Members end with the same bits where their processors multiply alike; between
unlike devices a matrix product may round in another way.
Source: Vogels et al. 2019 (PowerSGD, arXiv 1905.13727), algorithms 1 and 2.

Shape legend: R rows, C columns, r the rank (lower-case: `_Rr`), N elements of the bucket.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from hetplanner.codecs.spec import folded
from hetplanner.errors import InvalidInput
from hetplanner.plan.reducers.groups import ReductionGroup, Round
from hetplanner.runtime.comm.reduce import GroupReducer
from hetplanner.runtime.comm.transport import Transport

FIRST_SEED = 0
"""Of the first Q, the same on all members."""


def make_reducer(
    group: ReductionGroup, place: tuple[int, int], rank: int, bucket: Tensor, transport: Transport
) -> GroupReducer:
    """One rank's part in one group, whatever its codec; arguments as of `GroupReducer`."""
    kind = PowerReducer if group.codec.name == "powersgd" else GroupReducer
    return kind(group, place, rank, bucket, transport)


class PowerReducer(GroupReducer):
    """See the module; the group's transfers are those of P, then those of Q."""

    def __init__(
        self, group: ReductionGroup, place: tuple[int, int], rank: int, bucket: Tensor, transport: Transport
    ) -> None:
        factors = bucket.new_zeros(sum(group.parts))
        super().__init__(group, place, rank, factors, transport)
        self.gradients, (rows, columns) = bucket, folded(group.num_elements)
        self._rank = group.parts[0] // rows
        self._lost_RC = bucket.new_zeros(rows, columns)
        self._q_Cr = self._first_q(columns)
        self._own_q_Cr = torch.zeros_like(self._q_Cr)
        self._num_rounds_of_p = max((t.round for t in group.program if t.end <= group.parts[0]), default=-1) + 1
        self._has_q = False

    def _first_q(self, columns: int) -> Tensor:
        generator = torch.Generator().manual_seed(FIRST_SEED)
        return torch.randn(columns, self._rank, generator=generator).to(self.gradients.device)

    @property
    def _factors(self) -> tuple[Tensor, Tensor]:
        """P [R, r] and Q [C, r] as they are reduced."""
        end = self.group.parts[0]
        return self.bucket[:end].view(-1, self._rank), self.bucket[end:].view(-1, self._rank)

    @torch.no_grad()
    def reduce(self) -> int:
        """Replaces the gradients by about their sum over all members. Returns the bytes this rank has sent."""
        num_elements = self.gradients.numel()
        p_Rr, q_Cr = self._factors
        self._lost_RC.view(-1)[:num_elements].add_(self.gradients)
        torch.mm(self._lost_RC, self._q_Cr, out=p_Rr)
        self._has_q = False
        sent = super().reduce()
        self._make_q()  # if no round was left for it
        self.gradients.copy_((p_Rr @ q_Cr.t()).view(-1)[:num_elements])
        self._lost_RC.addmm_(p_Rr, self._own_q_Cr.t(), alpha=-1.0)
        # Gradients that are no numbers spoil the step, which is skipped or ends the run, but none that follows.
        self._lost_RC.nan_to_num_(0.0, 0.0, 0.0)
        # Columns that say nothing (of gradients that are no numbers, or of fewer than r dimensions) begin anew.
        alive_r = q_Cr.isfinite().all(dim=0) & q_Cr.any(dim=0)
        self._q_Cr.copy_(torch.where(alive_r, q_Cr, self._first_q(len(q_Cr))))
        return sent

    def _begin_round(self, part: Round) -> None:
        if (part.sends or part.takes)[0].transfer.round >= self._num_rounds_of_p:
            self._make_q()

    def _make_q(self) -> None:
        """Behind the sum of P, before Q travels."""
        if self._has_q:
            return
        self._has_q = True
        p_Rr, q_Cr = self._factors
        _orthonormalise(p_Rr)
        self._own_q_Cr.copy_(torch.mm(p_Rr.t(), self._lost_RC).t())
        q_Cr.copy_(self._own_q_Cr)

    def rehearse(self) -> None:
        """The computing that `reduce` does, without the network (for the profile). The gradients are used up.

        What is kept from step to step stays as it was.
        """
        kept = [tensor.clone() for tensor in (self._lost_RC, self._q_Cr)]
        p_Rr, q_Cr = self._factors
        torch.mm(self._lost_RC, self._q_Cr, out=p_Rr)
        self._has_q = False
        super().rehearse()
        self._make_q()
        self.gradients.copy_((p_Rr @ q_Cr.t()).view(-1)[: self.gradients.numel()])
        self._lost_RC.addmm_(p_Rr, self._own_q_Cr.t(), alpha=-1.0)
        for tensor, before in zip((self._lost_RC, self._q_Cr), kept, strict=True):
            tensor.copy_(before)

    def rescale(self, factor: float) -> None:
        """Gradients will come multiplied by a factor, other than before: what was lost is, too."""
        self._lost_RC.mul_(factor)

    def state(self) -> dict[str, Tensor]:
        """What was lost, and the last Q: part of the training's state."""
        return {"lost": self._lost_RC, "q": self._q_Cr}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave. Raises InvalidInput when it is another plan's."""
        mine = self.state()
        if {name: t.shape for name, t in mine.items()} != {name: t.shape for name, t in state.items()}:
            raise InvalidInput(
                f"state of {self.group.name}: does not fit {self.group.codec}; resume with the plan that was saved"
            )
        for name, tensor in mine.items():
            tensor.copy_(state[name])


def _orthonormalise(p_Rr: Tensor) -> None:
    """Gram-Schmidt, column by column; a column that lies in the span of those before becomes zero."""
    for k in range(p_Rr.shape[1]):
        column = p_Rr[:, k]
        before = float(column.norm())
        for _ in range(2):  # once more for what rounding left
            if k:
                column.sub_(p_Rr[:, :k] @ (p_Rr[:, :k].t() @ column))
        norm = float(column.norm())
        if norm <= 1e-5 * before:
            column.zero_()
        else:
            column.div_(norm)
