"""DT-FM's published iterations as plans of ours: predicted by the closed form and the simulator that planners use.

    python tests/benchmarks/prediction/bench_accuracy.py

The published runtime is another one than ours, see `hetplanner.calibration.dtfm_runtime`, which models it. Here every
row is written down as a plan, one GPipe flush with recomputed activations and 16-bit gradients in a ring, and timed as
any plan is. `calibrate_table` fits one efficiency and one overlap to the same two rows. The table stands in
docs/results/accuracy.md; a test holds the page to it.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.calibration.dtfm_rows import (
    EFFICIENCY_ROW,
    NUM_STAGES,
    OVERLAP_ROW,
    PublishedRow,
    deployments_of,
    fit_published,
    published_cluster,
    published_runs,
)
from hetplanner.calibration.dtfm_runtime import HIDDEN, SEQ_LEN
from hetplanner.calibration.model import apply_calibration
from hetplanner.calibration.table_fit import MeasuredStep, calibrate_table
from hetplanner.cluster.model import Cluster
from hetplanner.codecs.spec import Codec
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.model import Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.simulator.timing import simulate_step_s
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

CLASSES = 2
"""The measured task tells two classes apart, so there are no logits."""
PLACEMENTS = {"dtfm": "DT-FM's", "dtfm-random": "random", "megatron": "Megatron's"}


@dataclass(frozen=True)
class Predicted:
    """Seconds of a row: measured, by the closed form, by the simulator, by the model of DT-FM's runtime."""

    row: PublishedRow
    closed_s: float
    simulated_s: float
    theirs_s: float

    @property
    def is_fitted(self) -> bool:
        """Whether the row was fitted."""
        return self.row.key in (EFFICIENCY_ROW, OVERLAP_ROW)

    def error(self, seconds: float) -> float:
        """Relative, of one of the predictions."""
        return seconds / self.row.seconds - 1.0


def workload_of(row: PublishedRow) -> Workload:
    """GPT-3 XL with the row's layers and batch."""
    shape = TransformerConfig(
        vocab=CLASSES, max_seq_len=SEQ_LEN, hidden=HIDDEN, layers=row.layers, heads=16, ffn=4 * HIDDEN,
        tie_embeddings=False,
    )  # fmt: skip
    return Workload(
        name="gpt3-xl", transformer=shape, global_batch=row.batch, micro_batch=1, seq_len=SEQ_LEN, dtype="float16"
    )


def plans_of(row: PublishedRow, cluster: Cluster | None = None) -> list[Plan]:
    """The row on each placement that it may have been measured on."""
    cluster, workload = cluster or published_cluster(row.case), workload_of(row)
    names = [op.name for op in workload.graph.ops]
    inner = [names.index(f"layer.{s * row.layers // NUM_STAGES}.attention") for s in range(1, NUM_STAGES)]
    edges, ids = [0, *inner, len(names)], cluster.device_ids
    found = []
    for deployment in deployments_of(row):
        pipelines = len(deployment.placement_PS)
        stages = tuple(
            Stage(
                first_op=edges[s], end_op=edges[s + 1], in_flight=1, recompute=True, reduce_codec=Codec(name="fp16"),
                replicas=tuple((ids[d],) for d in deployment.placement_PS[:, s]),
            )
            for s in range(NUM_STAGES)
        )  # fmt: skip
        routes = tuple(
            Route(replicas=(p,) * NUM_STAGES, micro_batches=row.batch // pipelines) for p in range(pipelines)
        )
        problem = Problem(cluster=cluster, workload=workload)
        found.append(Plan(problem=problem, stages=stages, routes=routes, schedule="gpipe", reducer="ring", ranks=ids))
    return found


def predictions() -> list[Predicted]:
    """All published rows, two of them fitted."""
    rows = {row.key: row for row in published_runs().rows}
    fitted = [rows[key] for key in (EFFICIENCY_ROW, OVERLAP_ROW)]
    steps = [MeasuredStep(row.label, plans_of(row)[0], row.seconds) for row in fitted]
    calibration = calibrate_table(steps, fit=("efficiency", "overlap"), when="")
    theirs = {row.label: row.predicted_s for row in fit_published().rows}
    found = []
    for row in rows.values():
        plans = plans_of(row, apply_calibration(calibration, published_cluster(row.case)))
        closed_s, simulated_s = (
            float(np.mean([seconds(plan) for plan in plans]))
            for seconds in (lambda plan: estimate_plan(plan).step_s, simulate_step_s)
        )
        found.append(Predicted(row, closed_s, simulated_s, theirs[row.label]))
    return found


def page_table(found: list[Predicted]) -> str:
    """The rows as Markdown, mean and worst last."""
    lines = ["| case | placement | layers | batch | published | closed form | simulator | model of their runtime |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for one in found:
        row = one.row
        cells = [
            f"{seconds:.1f} s, {one.error(seconds):+.1%}".replace("%", " %") + (", fitted" if one.is_fitted else "")
            for seconds in (one.closed_s, one.simulated_s, one.theirs_s)
        ]
        words = [row.case, PLACEMENTS[row.system], str(row.layers), str(row.batch), f"{row.seconds:.1f} s", *cells]
        lines.append(f"| {' | '.join(words)} |")
    told = [one for one in found if not one.is_fitted]
    for name, take in (("mean", np.mean), ("worst", np.max)):
        cells = [
            f"{float(take([abs(one.error(getattr(one, part))) for one in told])):.1%}".replace("%", " %")
            for part in ("closed_s", "simulated_s", "theirs_s")
        ]
        lines.append(f"| {name} of {len(told)} | | | | | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(page_table(predictions()))


if __name__ == "__main__":
    main()
