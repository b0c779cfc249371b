"""Hidden tokens and continuations in two stages have the losses of plain transformers, whose own loss is taken."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.data import open_batches
from hetplanner.workload.capturing.capture import capture_config
from hetplanner.workload.workload import Workload
from tests.support.models.architectures import ARCHITECTURES, MASK_TOKEN
from tests.support.models.packed_data import documents_folder, some_documents
from tests.support.plans.factories import chain_plan
from tests.support.training.real_ranks import train

pytestmark = pytest.mark.distributed

STEPS = 8
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout_rate": 0.0, "dropout": 0.0}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (transformers.AutoModelForMaskedLM, ARCHITECTURES["bert (hidden tokens)"]),
    "t5": (transformers.AutoModelForSeq2SeqLM, ARCHITECTURES["t5"] | {"decoder_start_token_id": 0}),
    "t5 pairs": (transformers.AutoModelForSeq2SeqLM, ARCHITECTURES["t5"] | {"decoder_start_token_id": 0}),
    "bart pairs": (transformers.AutoModelForSeq2SeqLM, ARCHITECTURES["bart"] | {"decoder_start_token_id": 2}),
    "bart": (transformers.AutoModelForSeq2SeqLM, ARCHITECTURES["bart"] | {"decoder_start_token_id": 2}),
}


def plain_losses(model: Any, workload: Workload, config: TrainConfig) -> list[float]:
    """The same samples by transformers' own loss and torch.optim, in one process."""
    batches, half = open_batches(config, workload), workload.seq_len
    groups = [
        {"params": [w for w in model.parameters() if w.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in model.parameters() if w.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer, losses = torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas), []
    for step in range(config.steps):
        total = 0.0
        for m in range(workload.num_micro_batches):
            inputs, labels, _ = batches.draw(step, m)
            source = inputs if model.config.model_type == "bert" else inputs[:, :half]
            seen, share = None, 1 / workload.num_micro_batches
            if config.data is not None:  # pairs: their targets differ in number
                seen = source != model.config.pad_token_id
                share = int((labels != -100).sum()) / batches.num_labels_of_step(step)
            loss = model(input_ids=source, attention_mask=seen, labels=labels).loss * share
            loss.backward()
            total += loss.item()
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


@pytest.mark.parametrize("kind", MODELS)
def test_losses_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    auto, fields = MODELS[kind]
    kind, _, pairs = kind.partition(" ")
    data = str(documents_folder(tmp_path / "data", some_documents(200))) if pairs else None
    torch.manual_seed(7)
    model = auto.from_config(transformers.AutoConfig.for_model(kind, **fields | NO_DROPOUT)).train()
    model.save_pretrained(tmp_path / "model")
    workload = capture_config(
        tmp_path / "model", micro_batch=2, global_batch=8, seq_len=16, pairs=bool(pairs),
        mask_token=MASK_TOKEN if kind == "bert" else None,
    )  # fmt: skip
    plan = chain_plan([4], [workload.boundaries[len(workload.boundaries) // 2]], workload=workload)
    config = TrainConfig(steps=STEPS, learning_rate=1e-3, init_from=str(tmp_path / "model"), data=data)
    losses = train(plan, config, tmp_path / "run").losses()
    assert losses == pytest.approx(plain_losses(model, workload, config), rel=1e-5)
    assert len(set(losses)) == STEPS
