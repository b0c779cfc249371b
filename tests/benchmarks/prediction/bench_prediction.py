"""Predicted against measured step time on emulated links: three plan shapes, three codecs; ZeRO; groups of devices.

    python tests/benchmarks/prediction/bench_prediction.py [--steps 40] [--preset tiny-gpt] [--json]

The prediction is written before step 1 from the ranks' own profiles; the measured time is the median over the
steps but the first. Run it on a machine that does nothing else.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.model import Cluster
from hetplanner.codecs.spec import Codec
from hetplanner.plan.files.plan_files import load_plan
from hetplanner.plan.model import LinkCodec, Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.measure.profile import WINDOW_S
from hetplanner.schema import checked
from hetplanner.workload.presets import preset
from hetplanner.workload.tensor_degrees import SHARDINGS
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, sharded
from tests.support.plans.grouped import in_groups
from tests.support.training.real_ranks import Ranks, train

LINKS = [  # bandwidth, one-way latency between the sites i and i + 1 (and so on round)
    ("1 Gbit/s", "2 ms"),
    ("200 Mbit/s", "8 ms"),
    ("100 Mbit/s", "20 ms"),
    ("50 Mbit/s", "40 ms"),
    ("20 Mbit/s", "80 ms"),
]


def uneven_cluster(devices: int) -> Cluster:
    """One CPU device per site; links from 20 Mbit/s and 80 ms to 1 Gbit/s and 2 ms."""
    names = [f"site-{i}" for i in range(devices)]
    data = {
        "name": "uneven",
        "sites": [{"name": n, "latitude": 0, "longitude": 10 * i} for i, n in enumerate(names)],
        "hosts": [{"id": f"host-{i}", "site": n, "nic_out": "500 Mbit/s"} for i, n in enumerate(names)],
        "devices": [{"id": f"d{i}", "kind": "CPU generic", "host": f"host-{i}"} for i in range(devices)],
        "site_links": [
            {"from": a, "to": b, "bandwidth": LINKS[(i + j) % len(LINKS)][0], "latency": LINKS[(i + j) % len(LINKS)][1]}
            for i, a in enumerate(names)
            for j, b in enumerate(names)
        ],
    }
    return checked(Cluster, data, "uneven", from_file=True)


def with_codec(plan: Plan, name: str) -> Plan:
    """The codec on every pair of ranks, both ways, and (int8 beside top-k of a tenth) on the reduction."""
    if name == "none":
        return plan
    codec = Codec(name="topk", ratio=10.0) if name == "topk" else Codec(name=name)
    rules = [
        LinkCodec(from_device=a, to_device=b, role=role, codec=codec)
        for a in plan.ranks
        for b in plan.ranks
        if a != b
        for role in ("activation", "gradient")
    ]
    stages = tuple(s.replace(reduce_codec=Codec(name="int8")) for s in plan.stages)
    return plan.replace(link_codecs=tuple(rules), stages=stages)


def cases(workload: Workload) -> Iterator[tuple[str, Plan]]:
    """(label, plan) of every shape and codec."""
    m, n = workload.num_micro_batches, len(workload.graph.ops)
    shapes = {
        "2x2": ([m - m // 3, m // 3], [n // 2 - 1]),
        "3x2": ([m // 2, m - m // 2], [n // 3 - 1, 2 * n // 3]),
        "4x1": ([m], [n // 4, n // 2, 3 * n // 4]),
    }
    for label, (shares, cuts) in shapes.items():
        for codec in ("none", "int8", "topk"):
            ranks = len(shares) * (len(cuts) + 1)
            yield (
                f"{label} {codec}",
                with_codec(chain_plan(shares, cuts, cluster=uneven_cluster(ranks), workload=workload), codec),
            )
            if len(shares) > 1 and codec == "none":
                plan = chain_plan(shares, cuts, cluster=uneven_cluster(ranks), workload=workload)
                for reducer in ("sharded-ps", "ring", "hierarchical"):
                    yield f"{label} zero {reducer}", sharded(plan).replace(reducer=reducer)
    for degrees, shares, cuts in (
        ([2], [m], []),
        ([2, 1], [m], [n // 2]),
        ([2, 2], [m], [n // 2]),
        ([2, 1], [m - m // 3, m // 3], []),
        ([2, 2], [m // 2, m - m // 2], []),
        ([4, 2], [m], [2 * n // 3]),
    ):
        plan = chain_plan(shares, cuts, cluster=uneven_cluster(len(degrees)), workload=workload)
        name = f"{len(cuts) + 1}x{len(shares)} of {'+'.join(map(str, degrees))}"
        for sharding in SHARDINGS:
            if workload.micro_batch % max(degrees) == 0 or sharding == "tensor":
                yield f"{name} {sharding}", in_groups(with_codec(plan, "none"), degrees, sharding)


def measured_step_s(ranks: Ranks) -> float:
    """Median over steps of the time from one step's end to the next on rank 0; the first step is left out."""
    ends = [line["end_s"] for line in ranks.lines(0, "step")]
    return statistics.median(b - a for a, b in pairwise(ends))


def bench(label: str, plan: Plan, steps: int) -> dict[str, object]:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = train(plan, TrainConfig(steps=steps, emulate_links=True), Path(folder), profile_s=WINDOW_S)
        predicted = json.loads((Path(folder) / "prediction.json").read_text())
        measured = measured_step_s(ranks)
        lines = ranks.all_lines("step")
        profile = ranks.lines(0, "profile")[0]
        return {
            "case": label,
            "predicted_s": predicted["step_s"],
            "measured_s": measured,
            "ratio": predicted["step_s"] / measured,
            "catalog_s": predicted["catalog_step_s"],
            "late": sum(x["late"] for x in lines),
            "late_s": sum(x["late_s"] for x in lines),
            "deliveries": sum(1 for x in ranks.all_lines("span") if x["kind"] == "recv"),
            "cores": sum(x["cores"] for x in ranks.all_lines("profile")),
            "message_us": 1e6 * profile["message_s"],
        }


def main() -> None:
    """Prints the table, or JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--preset", default="tiny-gpt")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--plan", type=Path, action="append", default=[], help="these plans instead")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    workload = preset(args.preset)
    if not args.json:
        print(
            f"{'case':10} {'predicted':>10} {'measured':>10} {'ratio':>6} {'catalog':>9} {'late':>12}"
            f" {'cores':>6} {'message':>9}"
        )
    chosen = [(path.stem, load_plan(path)) for path in args.plan] or cases(workload)
    for label, plan in chosen:
        if args.only not in label:
            continue
        row = bench(label, plan, args.steps)
        if args.json:
            print(json.dumps(row), flush=True)
            continue
        print(
            f"{row['case']:10} {1e3 * row['predicted_s']:8.1f}ms {1e3 * row['measured_s']:8.1f}ms {row['ratio']:6.3f}"
            f" {1e3 * row['catalog_s']:7.1f}ms {row['late']:5}/{row['deliveries']:<6}"
            f" {row['cores']:6.2f} {row['message_us']:7.0f}us",
            flush=True,
        )


if __name__ == "__main__":
    main()
