"""How a peer steps its stage's weights: at the commit, or beside the next step's passes.

A delayed update (delay 1) takes the optimizer out of the time in which a step is closed. Step k is computed with the
weights after k - 1 updates, in every stage: at the commit a peer goes over to the newest weights, which have been made
meanwhile, and the next ones are made beside the passes of step k + 1.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

from torch import Tensor

from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.adamw import FlatAdamW
from hetplanner.runtime.build import StageModel


class StageUpdate:
    """AdamW at the commit.

    Args:
        model: the stage; micro-batches are computed with its weights.
        config: of the optimizer.

    Attributes:
        num_steps: updates so far.
    """

    def __init__(self, model: StageModel, config: TrainConfig) -> None:
        self.model = model
        self._newest = self._newest_weights()
        decayed = [self._newest[w.first : w.end].view(w.shape) for w in model.weights if len(w.shape) >= 2]
        self._optimizer = FlatAdamW(
            self._newest, model.flat_grad, decayed, betas=config.betas, weight_decay=config.weight_decay
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
        self._optimizer.flat_grad = gradient.mul_(factor)
        self._optimizer.step(learning_rate)
        self._optimizer.flat_grad = self.model.flat_grad

    def settle(self) -> None:
        """Waits until nothing is under way; raises what went wrong in it."""
        return

    def tensors(self) -> dict[str, Tensor]:
        """The state by the names of `SwarmSpec.state_names`; not copies."""
        self.settle()
        return {"weights": self._newest, "mean": self._optimizer.mean, "square": self._optimizer.square}


class DelayedUpdate(StageUpdate):
    """AdamW one step late, on a thread of its own.

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
