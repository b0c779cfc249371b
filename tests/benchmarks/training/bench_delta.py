"""What delta coding (AQ-SGD) wins in loss over the plain codec of as many bytes, where samples return.

    python tests/benchmarks/training/bench_delta.py gpt|digits [--steps 400] [--seeds 2] [--only dense,int4]

Three stages in threads; activations in the named codec at both boundaries, gradients dense. The small GPT reads 16 KiB
of Python (230 windows of 64, an epoch is 29 steps), a residual net of convolutions reads scikit-learn's digits (1,618;
an epoch is 51 steps). Printed, as means over the last tenth of the steps: the training loss and how far it is from the
first row's (the dense run) of the same seed; then the held-out loss without codecs on the way, and the relative
error of the activations that arrived.
"""

import argparse
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from torch import Tensor, nn

from hetplanner.codecs.spec import Codec
from hetplanner.codecs.torch_codecs import TensorCodec
from hetplanner.data.text import standard_library
from hetplanner.plan.action import Action
from hetplanner.plan.model import LinkCodec, Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.data import open_batches
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.models.captured_models import Residual
from tests.support.plans.factories import chain_plan
from tests.support.training.threaded_ranks import ThreadedRanks

TEXT_BYTES = 2**14
VALIDATION_STEPS = 8
CODECS = {
    f"{name}{' delta' if delta else ''}": Codec(name=name, delta=delta)
    for name in ("int8", "int4")
    for delta in (False, True)
}


def gpt() -> Workload:
    """Three layers of 64."""
    config = TransformerConfig(
        name="small-gpt", vocab=256, max_seq_len=64, hidden=64, layers=3, heads=4, ffn=256, tie_embeddings=False
    )
    return Workload(name="gpt", transformer=config, global_batch=8, micro_batch=8, seq_len=64, dtype="float32")


def conv_net() -> tuple[nn.Module, Tensor]:
    """Three residual blocks of 16 channels."""
    blocks = [nn.Sequential(nn.Conv2d(1, 16, 3, padding=1)), *(Residual(16) for _ in range(3))]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(16 * 64, 10)), torch.zeros(32, 1, 8, 8)


def digits() -> Workload:
    """Convolutions with skips."""
    from hetplanner.capture.assemble import capture_workload

    return capture_workload(conv_net, "digits", global_batch=32)


def plan_of(workload: Workload, codec: Codec | None) -> Plan:
    """Three stages; boundaries a third and two thirds along, where one tensor crosses."""
    num, cuts = len(workload.graph.ops), []
    for share in (1 / 3, 2 / 3):
        narrow = [k for k in workload.boundaries if len(workload.graph.crossing_ops[k]) == 1 and k not in cuts]
        cuts.append(min(narrow, key=lambda k: abs(k - share * num)))
    plan = chain_plan([workload.num_micro_batches], cuts, workload=workload)
    pairs = pairwise(plan.ranks) if codec else ()
    rules = [LinkCodec(from_device=a, to_device=b, role="activation", codec=codec) for a, b in pairs]
    return plan.replace(link_codecs=tuple(rules))


class Arrivals:
    """Relative errors of activations, noted on the way."""

    def __init__(self, ranks: ThreadedRanks) -> None:
        self.sent: dict[tuple[int, int], Tensor] = {}
        self.errors: list[float] = []
        for executor in ranks.executors:
            choose = executor._codec_now
            executor._codec_now = lambda codec, action, choose=choose: Watched(choose(codec, action), action, self)


class Watched:
    """A codec whose two ends are compared."""

    def __init__(self, codec: TensorCodec, action: Action, arrivals: Arrivals) -> None:
        self.codec, self.action, self.arrivals = codec, action, arrivals
        self.key = action.stage, action.micro_batch

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Notes what is sent."""
        if self.action.role == "activation":
            self.arrivals.sent[self.key] = x.detach().clone()
        self.codec.encode(x, out)

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Notes by how much it differs."""
        y = self.codec.decode(data, num_elements)
        if self.action.role == "activation":
            x = self.arrivals.sent.pop(self.key).reshape(-1)
            self.arrivals.errors.append(float((y - x).norm() / x.norm()))
        return y


@torch.no_grad()
def held_out_loss(ranks: ThreadedRanks, config: TrainConfig) -> float:
    """Mean loss of held-out samples; nothing is compressed on the way."""
    workload = ranks.plan.problem.workload
    batches, total = open_batches(config, workload), 0.0
    for step in range(VALIDATION_STEPS):
        for m in range(workload.num_micro_batches):
            x, batch = None, batches.draw(step, m, "validation")
            for executor in ranks.executors:
                (chunk,) = executor.chunks
                x = chunk.runner.evaluate(x, batch if chunk.model.needs_batch else None)
            total += float(x)
    return total / (VALIDATION_STEPS * workload.tokens_per_step)


def main() -> None:
    """Prints a row per codec and seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["gpt", "digits"])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default=",".join(["dense", *CODECS]))
    given = parser.parse_args()
    torch.set_num_threads(1)
    workload, last = {"gpt": gpt, "digits": digits}[given.model](), max(1, given.steps // 10)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "short.py"
        text.write_bytes((standard_library() / "argparse.py").read_bytes()[:TEXT_BYTES])
        for seed in range(given.seeds):
            dense: list[float] = []
            for name in given.only.split(","):
                config = TrainConfig(
                    steps=given.steps, seed=seed, data=str(text) if given.model == "gpt" else None,
                    learning_rate=2e-3, warmup_steps=50, lr_schedule="cosine",
                )  # fmt: skip
                ranks = ThreadedRanks(plan_of(workload, CODECS.get(name)), config)
                arrivals = Arrivals(ranks)
                losses = [ranks.run_step(step) for step in range(given.steps)]
                dense = dense or losses
                final, first = statistics.mean(losses[-last:]), statistics.mean(dense[-last:])
                gap = statistics.mean(abs(a - b) for a, b in zip(losses[-last:], dense[-last:], strict=True))
                wrong = statistics.mean(arrivals.errors[-last:])
                print(
                    f"{given.model} seed {seed} {name:>10}: loss {final:.5f}, {final / first - 1:+.2%} of the first"
                    f" row's, {gap:.5f} off step by step; held out {held_out_loss(ranks, config):.4f};"
                    f" activations {wrong:.3%} wrong",
                    flush=True,
                )


if __name__ == "__main__":
    main()
