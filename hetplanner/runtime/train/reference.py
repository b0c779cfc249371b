"""The reference: one process accumulating the same micro-batches in order, with torch's own AdamW.

Every uncompressed run must equal it; nothing of the pipeline is used.
"""

import torch

from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.precision import autocast
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import open_batches
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
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for w in weights if w.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=config.betas,
    )
    scaler = torch.amp.GradScaler("cpu", enabled=workload.dtype == "float16")
    losses = []
    for step in range(config.steps):
        optimizer.zero_grad(set_to_none=False)
        loss_sum = 0.0
        for m in range(workload.num_micro_batches):
            with autocast(workload.dtype):
                loss = model.forward(None, batches.draw(step, m), RngKey(config.seed, step, m))
            scaler.scale(loss / workload.tokens_per_step).backward()
            loss_sum += float(loss.detach())
        scaler.unscale_(optimizer)
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(weights, config.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss_sum / workload.tokens_per_step)
    return model, losses
