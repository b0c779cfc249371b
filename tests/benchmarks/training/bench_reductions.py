"""What replicas send and how they learn: every step against local steps, dense against codecs with error feedback.

A small GPT on two replicas, real ranks on this machine, the library's own sources as text; the loss is the mean of the
last 32 training steps and that of one validation batch. Bytes are those of reductions, per step and rank.

python tests/benchmarks/training/bench_reductions.py [steps] [seeds]
"""

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.codecs.spec import Codec
from hetplanner.plan.model import OuterOptimizer, Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan
from tests.support.training.real_ranks import train

INT8, TOPK, POWER = Codec(name="int8"), Codec(name="topk", ratio=100.0), Codec(name="powersgd", rank=8)
OUTER = OuterOptimizer()
ROWS: dict[str, tuple[int, Codec, bool, OuterOptimizer | None]] = {
    "every step, dense": (1, Codec(), False, None),
    "every step, int8": (1, INT8, False, None),
    "every step, int4 fed back": (1, Codec(name="int4"), True, None),
    "every step, top 10 % fed back": (1, Codec(name="topk", ratio=10.0), True, None),
    "every step, top 1 % fed back": (1, TOPK, True, None),
    "every step, powersgd rank 8": (1, POWER, False, None),
    "8 local steps, mean": (8, Codec(), False, None),
    "8 local steps, outer": (8, Codec(), False, OUTER),
    "32 local steps, mean": (32, Codec(), False, None),
    "32 local steps, outer": (32, Codec(), False, OUTER),
    "32 local steps, outer, int4 fed back": (32, Codec(name="int4"), True, OUTER),
}


def make_plan(local_steps: int, codec: Codec, error_feedback: bool, outer: OuterOptimizer | None) -> Plan:
    """Two replicas of a model of one stage."""
    config = TransformerConfig(vocab=256, max_seq_len=64, hidden=64, layers=2, heads=4, ffn=256)
    workload = Workload(name="bench", transformer=config, global_batch=16, micro_batch=4, seq_len=64, dtype="float32")
    plan = chain_plan([2, 2], [], workload=workload)
    fields = {"reduce_codec": codec, "error_feedback": error_feedback}
    plan = plan.replace(stages=tuple(stage.replace(**fields) for stage in plan.stages))
    return plan.replace(local_steps=local_steps, outer=outer)


def main() -> None:
    """Prints a row per way to reduce."""
    steps, seeds = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((1, 320), (2, 1)))
    print(f"{steps} steps, {seeds} seeds; first loss about 5.6")
    print(f"{'':>36} {'bytes/step':>12} {'train loss':>11} {'validation':>11}")
    for name, row in ROWS.items():
        losses, validations, sent = [], [], 0.0
        for seed in range(seeds):
            config = TrainConfig(steps=steps, seed=seed, learning_rate=3e-3, warmup_steps=20)
            with tempfile.TemporaryDirectory() as folder:
                ranks = train(make_plan(*row), config, Path(folder))
                losses.append(statistics.mean(ranks.losses()[-32:]))
                lines = ranks.all_lines("validation")
                validations.append(sum(v["loss_sum"] for v in lines) / sum(v["num_tokens"] for v in lines))
                sent = sum(line["reduce_bytes"] for line in ranks.all_lines("step")) / steps / 2
        row_text = f"{name:>36} {sent:12,.0f} {statistics.mean(losses):11.4f} {statistics.mean(validations):11.4f}"
        print(row_text, flush=True)


if __name__ == "__main__":
    main()
