"""The ops of a transformer's stage, each one of our modules."""

from torch import Tensor, nn

from hetplanner.runtime.model.initial import fill_transformer_weight
from hetplanner.runtime.model.layout import ModelWeight
from hetplanner.runtime.model.modules import MODULES, Loss, OpModule
from hetplanner.runtime.rng import RngKey
from hetplanner.workload.workload import Workload


class TransformerStage:
    """Modules of ops `first_op` to `end_op`; see `build.StageOps`."""

    def __init__(self, workload: Workload, first_op: int, end_op: int) -> None:
        assert workload.transformer is not None
        self.graph, self.config, self.first_op = workload.graph, workload.transformer, first_op
        self.modules: list[OpModule] = [
            MODULES[op.kind](workload.transformer, first_op + i) for i, op in enumerate(self.graph.ops[first_op:end_op])
        ]
        ends = {"inputs": first_op == 0, "labels": end_op == len(self.graph.ops)}
        self.reads = frozenset(part for part, read in ends.items() if read)
        self.running: dict[str, Tensor] = {}
        self.expert_loads: dict[str, Tensor] = {}

    def bind(self, weight: ModelWeight, parameter: nn.Parameter) -> None:
        """Puts a weight into every module that uses it."""
        owner = self.graph.ops[weight.owner]
        local = weight.name.removeprefix(owner.name + ".")
        for index in weight.users:
            if not 0 <= index - self.first_op < len(self.modules):
                continue
            # The head holds the embedding's table under a name of its own; layers that share are alike.
            holder, _, leaf = (local if self.graph.ops[index].kind == owner.kind else "weight").rpartition(".")
            module = self.modules[index - self.first_op]
            setattr(module.get_submodule(holder) if holder else module, leaf, parameter)

    def fill(self, weight: ModelWeight, values: Tensor, seed: int) -> None:
        """Initial values."""
        fill_transformer_weight(values, weight.name, self.config, seed)

    def compute(
        self, inputs: list[Tensor], batch: tuple[Tensor, Tensor] | None, key: RngKey | None, *, again: bool = False
    ) -> list[Tensor]:
        """Runs the modules one after the other."""
        if inputs:
            (x,) = inputs
        else:
            assert batch is not None
            x = batch[0]
        for module in self.modules:
            x = module(x, batch[1]) if isinstance(module, Loss) and batch else module(x, key)
        return [x]

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """[B, T, V] of a whole model, for sampling."""
        x = tokens_BT
        for module in self.modules:
            if not isinstance(module, Loss):
                x = module(x)
        return x
