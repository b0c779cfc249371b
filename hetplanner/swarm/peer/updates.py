"""How a peer steps its stage's weights: at the commit, beside the next step's passes, or by itself for some steps.

A delayed update (delay 1) takes the optimizer out of the time in which a step is closed. Step k is computed with the
weights after k - 1 updates, in every stage: at the commit a peer goes over to the newest weights, which have been made
meanwhile, and the next ones are made beside the passes of step k + 1.

With local steps (DiLoCo inside SWARM) a peer steps with the gradients of its own micro-batches. In the last step of a
round the peers of a stage average how far each has come from the weights that all had, weighted by the micro-batches
that each has worked on; the outer optimizer takes the mean for a step. Moments stay each peer's own. A joiner goes on
from a neighbour's weights, and weighs nothing until it has worked itself.
Source: Douillard et al. 2023 (DiLoCo, arXiv 2311.08105), algorithm 1.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass

import torch
from torch import Tensor

from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.train.local_steps import step_outer
from hetplanner.runtime.train.optimizers import StageOptimizer


class StageUpdate:
    """A step of the optimizer at the commit.

    Args:
        model: the stage; micro-batches are computed with its weights.
        config: of the optimizer.

    Attributes:
        num_steps: updates so far.
    """

    def __init__(self, model: StageModel, config: TrainConfig) -> None:
        self.model = model
        self._newest = self._newest_weights()
        own = model.weights if model.shards else None
        self._optimizer = StageOptimizer(
            model.workload, model.first_op, model.end_op, config, self._newest, model.flat_grad, own
        )

    def _newest_weights(self) -> Tensor:
        """Where the optimizer steps."""
        return self.model.flat

    @property
    def num_steps(self) -> int:
        """Updates so far."""
        self.settle()
        return self._optimizer.num_steps

    @num_steps.setter
    def num_steps(self, number: int) -> None:
        self._optimizer.num_steps = number

    def apply(self, gradient: Tensor, factor: float, learning_rate: float) -> None:
        """Steps by a gradient (1-D, as long as the weights) times a factor; the gradient is used up."""
        self._optimizer.step_by(gradient.mul_(factor), learning_rate)

    def settle(self) -> None:
        """Waits until nothing is under way; raises what went wrong in it."""
        return

    def tensors(self) -> dict[str, Tensor]:
        """The state by the names of `state_sizes`; not copies."""
        self.settle()
        return {**self.model.parts(), "weights": self._newest, **self._optimizer.states}

    def common(self) -> dict[str, Tensor]:
        """Of the state, what all replicas of the stage have alike."""
        return self.tensors()


class DelayedUpdate(StageUpdate):
    """A step of the optimizer one step late, on a thread of its own.

    Args:
        model, config: see StageUpdate.
        beside: what steps, one update after the other.
    """

    def __init__(self, model: StageModel, config: TrainConfig, beside: Executor) -> None:
        super().__init__(model, config)
        self._beside = beside
        self._under_way: Future[None] | None = None

    def _newest_weights(self) -> Tensor:
        return self.model.flat.clone()

    def apply(self, gradient: Tensor, factor: float, learning_rate: float) -> None:
        """Goes over to the newest weights, and begins to make the next ones of them."""
        self.settle()
        self.model.flat.copy_(self._newest)
        self._under_way = self._beside.submit(super().apply, gradient, factor, learning_rate)

    def settle(self) -> None:
        """See StageUpdate."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def tensors(self) -> dict[str, Tensor]:
        """With the weights that micro-batches are computed with, which are an update older than `weights`."""
        return super().tensors() | {"in_use": self.model.flat}


@dataclass
class Stepped:
    """An optimizer's state after a local step that is not committed yet."""

    states: dict[str, Tensor]
    num_steps: int


class LocalUpdate(StageUpdate):
    """Steps of the optimizer by itself, and an outer step at the end of a round.

    Args:
        model, config: see StageUpdate; the weights may be loaded later.
        outer: optimizer of the averaged change; None takes it as it is.

    Attributes:
        samples: micro-batches of this round that this peer has stepped with.
    """

    def __init__(self, model: StageModel, config: TrainConfig, outer: OuterOptimizer | None) -> None:
        super().__init__(model, config)
        self._outer = outer
        self._anchor = model.flat.clone()
        self._velocity = torch.zeros_like(model.flat) if outer is not None else None
        self.samples = 0

    def step_alone(self, gradient: Tensor, count: int, factor: float, learning_rate: float) -> None:
        """A local step with the gradients of `count` micro-batches; with none there is none."""
        if count:
            self.apply(gradient, factor, learning_rate)
        self.samples += count

    def offer(self, gradient: Tensor, count: int, factor: float, learning_rate: float) -> tuple[Tensor, Stepped]:
        """Tries the round's last local step: the change since the round began times its samples, and the moments.

        The state is left as it was: the step may come to nothing.
        """
        optimizer, samples = self._optimizer, self.samples
        weights, states = self._newest.clone(), {part: tensor.clone() for part, tensor in optimizer.states.items()}
        num_steps = optimizer.num_steps
        self.step_alone(gradient, count, factor, learning_rate)
        change = (self._newest - self._anchor).mul_(self.samples)
        stepped = Stepped(optimizer.states, optimizer.num_steps)
        self._newest.copy_(weights)
        optimizer.take_states(states)
        optimizer.num_steps, self.samples = num_steps, samples
        return change, stepped

    def end_round(self, change: Tensor, stepped: Stepped) -> None:
        """The outer step by the stage's mean change, which is used up."""
        optimizer = self._optimizer
        optimizer.take_states(stepped.states)
        optimizer.num_steps = stepped.num_steps
        step_outer(self._newest, change, self._anchor, self._velocity, self._outer)
        self.samples = 0

    def tensors(self) -> dict[str, Tensor]:
        """With the weights that all replicas had when the round began, and the outer momentum."""
        return super().tensors() | self.common()

    def common(self) -> dict[str, Tensor]:
        """What the last outer step left: between two of them replicas differ in all else."""
        return {"anchor": self._anchor} | ({} if self._velocity is None else {"velocity": self._velocity})
