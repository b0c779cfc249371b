"""Speed of the interpreter of programs against the plain module: forward and backward of one micro-batch.

    python tests/benchmarks/training/bench_captured.py

Both run in turn in this process on one thread; the median of the ratios of neighbouring rounds is printed.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.huggingface import config_factory
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.rng import RngKey
from tests.support.models import captured_models

ROUNDS, WARMUP = 60, 5
GPT2_TINY = {"model_type": "gpt2", "n_layer": 6, "n_embd": 128, "n_head": 4, "vocab_size": 256, "n_positions": 64}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
RESNET = {
    "model_type": "resnet", "depths": [2, 2, 2, 2], "hidden_sizes": [16, 32, 64, 128], "embedding_size": 16,
    "num_channels": 3, "num_labels": 10, "layer_type": "basic", "image_size": 32,
}  # fmt: skip
MODELS = {
    "GPT-2 tiny (6 x 128, 2 x 64 tokens)": config_factory(GPT2_TINY | NO_DROPOUT, "gpt2", micro_batch=2, seq_len=64),
    "GPT-2 tiny with dropout": config_factory(GPT2_TINY, "gpt2", micro_batch=2, seq_len=64),
    "GPT-2 of 2 x 32, 2 x 16 tokens": config_factory(captured_models.GPT2 | NO_DROPOUT, "g", micro_batch=2, seq_len=16),
    "Llama of 2 x 32, 2 x 16 tokens": captured_models.hf_llama,
    "ResNet-18 of narrow layers, 4 x 32 x 32": config_factory(RESNET, "resnet", micro_batch=4),
}


def seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def measure(name: str) -> None:
    workload = capture_workload(MODELS[name], name)
    model = StageModel(workload, 0, len(workload.graph.ops), 0)
    module = MODELS[name]()[0].inner.train()
    module.load_state_dict(model.saved_tensors(), strict=False)
    program = workload.program
    inputs = torch.randn(program.inputs) if not workload.reads_tokens else torch.randint(0, 256, program.inputs)
    labels = torch.randint(0, 10, program.labels)

    def by_module() -> None:
        logits = module(inputs).logits
        F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="sum").backward()

    def by_program() -> None:
        model.forward(None, (inputs, labels), RngKey(0, 0, 0)).backward()

    ratios, best = [], [float("inf"), float("inf")]
    for i in range(WARMUP + ROUNDS):
        times = [seconds(by_module), seconds(by_program)]
        if i >= WARMUP:
            ratios.append(times[0] / times[1])
            best = [min(pair) for pair in zip(best, times, strict=True)]
    print(
        f"{name:42s} module {1e3 * best[0]:7.2f} ms  program {1e3 * best[1]:7.2f} ms"
        f"  speed of the module's: median {statistics.median(ratios):.2f}, best to best {best[0] / best[1]:.2f}"
        f"  ({len(program.nodes)} calls)"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for model_name in MODELS:
        measure(model_name)
