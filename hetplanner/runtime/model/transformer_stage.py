"""The ops of a transformer's stage, each one of our modules."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from hetplanner.runtime.device_group.group import ALONE, DeviceGroup
from hetplanner.runtime.model.initial import fill_transformer_weight
from hetplanner.runtime.model.layout import ModelWeight
from hetplanner.runtime.model.modules import MODULES, Attention, DocumentMask, Embedding, Loss, OpModule
from hetplanner.runtime.rng import RngKey
from hetplanner.workload.workload import Workload


class TransformerStage:
    """Modules of ops `first_op` to `end_op`; see `build.StageOps`. Members of a group each have a part of them."""

    def __init__(self, workload: Workload, first_op: int, end_op: int, group: DeviceGroup = ALONE) -> None:
        assert workload.transformer is not None
        self.graph, self.config, self.first_op, self.group = workload.graph, workload.transformer, first_op, group
        adapters = workload.fine_tuning.adapters if workload.fine_tuning is not None else None
        self.modules: list[OpModule] = [
            MODULES[op.kind](workload.transformer, first_op + i, adapters, group)
            for i, op in enumerate(self.graph.ops[first_op:end_op])
        ]
        ends = {"inputs": first_op == 0, "labels": end_op == len(self.graph.ops)}
        self.reads = frozenset(part for part, read in ends.items() if read)
        self.isolates_documents = any(isinstance(module, Embedding | Attention) for module in self.modules)
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
        self, inputs: list[Tensor], batch: Sequence[Tensor | None] | None, key: RngKey | None, *, again: bool = False,
        segments: Sequence[tuple[int, int]] = (),
    ) -> list[Tensor]:  # fmt: skip
        """Runs the modules one after the other."""
        parts = [None if part is None else self.group.own_samples(part) for part in batch or ()]
        tokens, labels, documents = (*parts, None, None, None)[:3]
        x = inputs[0] if inputs else tokens
        mask = None if documents is None else DocumentMask.of(documents)
        if not segments:
            return self._run(self.modules, x, labels, mask, key)
        from torch.utils.checkpoint import checkpoint  # of the few stages that need it

        out: list[Tensor] = []
        for first, end in segments:
            modules = self.modules[first - self.first_op : end - self.first_op]
            run = partial(self._run, modules, labels=labels, mask=mask, key=key)
            # What is random depends on the key alone.
            out = checkpoint(run, out[0] if out else x, use_reentrant=False, preserve_rng_state=False)
        return out

    @staticmethod
    def _run(
        modules: Sequence[OpModule], x: Tensor | None, labels: Tensor | None, mask: DocumentMask | None,
        key: RngKey | None,
    ) -> list[Tensor]:  # fmt: skip
        for module in modules:
            if isinstance(module, Loss):
                assert x is not None
                assert labels is not None
                correct = [] if key is not None else [module.count_correct(x, labels)]
                return [module(x, labels), *correct]
            elif isinstance(module, Embedding | Attention):
                x = module(x, key, mask)
            else:
                x = module(x, key)
        assert x is not None
        return [x]

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """[B, T, V] of a whole model, for sampling."""
        x = tokens_BT
        for module in self.modules:
            if not isinstance(module, Loss):
                x = module(x)
        return x
