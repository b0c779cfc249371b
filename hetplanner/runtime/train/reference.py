"""The reference: one process accumulating the same micro-batches in order, with the classes of `torch.optim`.

Every uncompressed run must equal it; nothing of the pipeline is used.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.layout import stage_weights
from hetplanner.runtime.model.precision import autocast
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import open_batches
from hetplanner.workload.optimizers import MOMENTUM, inner_ops
from hetplanner.workload.workload import Workload


def train_reference(workload: Workload, config: TrainConfig) -> tuple[StageModel, list[float]]:
    """Trains the whole model in this process.

    Args:
        workload: model and batch.
        config: steps, seed, data and optimiser settings.

    Returns:
        The model, and the mean loss (nats per token) of every step.
    """
    model = StageModel(workload, 0, len(workload.graph.ops), config.seed)
    batches = open_batches(config, workload)
    weights = model.parameters
    optimizers = torch_optimizers(model, config)
    scaler = torch.amp.GradScaler("cpu", enabled=workload.dtype == "float16")
    losses = []
    for step in range(config.steps):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)
        loss_sum = 0.0
        num_targets = workload.tokens_per_step if batches.packed is None else max(1, batches.num_labels_of_step(step))
        for m in range(workload.num_micro_batches):
            with autocast(workload.dtype):
                loss = model.forward(None, batches.draw(step, m), RngKey(config.seed, step, m))
            scaler.scale(loss / num_targets).backward()
            loss_sum += float(loss.detach())
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(weights, config.clip_norm)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate_at(step)
            scaler.step(optimizer)
        scaler.update()
        losses.append(loss_sum / num_targets)
    return model, losses


def torch_optimizers(model: StageModel, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """The workload's optimizer as `torch.optim` (8-bit: bitsandbytes) has it, of a whole model; with Muon two."""
    name, rate, weights = model.workload.optimizer, config.learning_rate, model.parameters
    groups = _groups(weights, config)
    if name == "sgd":
        momentum = MOMENTUM["sgd"] if config.momentum is None else config.momentum
        return [torch.optim.SGD(groups, lr=rate, momentum=momentum)]
    if name == "adafactor":
        return [torch.optim.Adafactor(groups, lr=rate)]
    if name == "adamw8bit":
        from bitsandbytes.optim import AdamW8bit

        return [AdamW8bit(groups, lr=rate, betas=config.betas)]
    if name == "muon":
        inner = inner_ops(model.workload.graph)
        layout = stage_weights(model.workload, model.first_op, model.end_op)
        hidden = [w for w, (m, _) in zip(weights, layout, strict=True) if w.ndim == 2 and inner.issuperset(m.users)]
        others = [w for w in weights if not any(w is one for one in hidden)]
        momentum = MOMENTUM["muon"] if config.momentum is None else config.momentum
        decay, how = config.weight_decay, "match_rms_adamw"
        muon = torch.optim.Muon(hidden, lr=rate, weight_decay=decay, momentum=momentum, adjust_lr_fn=how)
        return [muon, torch.optim.AdamW(_groups(others, config), lr=rate, betas=config.betas)]
    return [torch.optim.AdamW(groups, lr=rate, betas=config.betas)]


def _groups(weights: Sequence[Tensor], config: TrainConfig) -> list[dict[str, Any]]:
    """Matrices decay, norms and biases do not."""
    return [
        {"params": [w for w in weights if w.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
    ]
