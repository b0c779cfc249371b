"""The square-cube law measured: how busy two stages are over the width of their model, on one emulated link.

    python tests/benchmarks/prediction/bench_square_cube.py [--hidden 128,256,512,1024] [--repeats 3] [--plot FILE.html]

Two stages of one layer each, two ranks on this machine. Measured is the share of a step for which a rank computes, in
CPU seconds of its forwards and backwards (`clock`: in seconds of the clock, which counts waiting for a core too),
median over the steps of all repeats. Predicted is the simulation from the ranks' own profiles, taken in the same run
before its first step, with a core for each rank. `law` is compute / max(compute, transfer) from the same profile, which
both come near where many micro-batches are in flight. Must: measured rises with the width, and is predicted within 15 %
(aim 10 %).

Ranks that have to wait for cores take longer than any link makes them. So a run begins when other processes have less
than `--others` cores, and is left out, whatever it says, when they had more while it lasted; `--patience` bounds the
waiting.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import psutil

from hetplanner.cost.square_cube import HEAD_DIM, SquareCubePoint
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reports.utilisation import Utilisation, utilisation_of_run
from hetplanner.runtime.measure.prediction import NUM_STEPS
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.training.real_ranks import Ranks, start_ranks

SEQ_LEN, MICRO_BATCH, MICRO_BATCHES = 64, 4, 10
IN_FLIGHT = 6
"""Enough to hide the link's latency and both ways of a message."""
MUST, AIM = 0.15, 0.10
LOOK_S = 2.0
"""How long the machine is looked at before a run."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run.

    Attributes:
        shares: of every step but the first, in CPU seconds, mean over ranks.
        predicted, law, clock: see the module.
        step_s, predicted_step_s: a step, median and predicted.
        others: cores that other processes had.
    """

    shares: list[float]
    predicted: float
    law: float
    clock: float
    step_s: float
    predicted_step_s: float
    others: float


def two_stages(hidden: int, bandwidth: str) -> Plan:
    """A layer each; the embedding is with the first, the head with the second."""
    config = TransformerConfig(
        vocab=256, max_seq_len=SEQ_LEN, hidden=hidden, layers=2, heads=hidden // HEAD_DIM, ffn=4 * hidden,
        tie_embeddings=False,
    )  # fmt: skip
    workload = Workload(
        name=f"hidden {hidden}", transformer=config, global_batch=MICRO_BATCH * MICRO_BATCHES, micro_batch=MICRO_BATCH,
        seq_len=SEQ_LEN, dtype="float32",
    )  # fmt: skip
    link = small_cluster(2, bandwidth=bandwidth, latency="2 ms")
    cut = workload.boundaries[1]
    return chain_plan([MICRO_BATCHES], [cut], workload=workload, cluster=link, in_flight=[IN_FLIGHT, 1])


# -- in the ranks ---------------------------------------------------------------------------------


def count_cpu(folder: str, rank: int) -> None:
    """Writes the CPU seconds of every forward and backward of this process, a line each."""
    file = (Path(folder) / f"cpu-{rank}.txt").open("w", buffering=1)

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def run(*args: Any) -> Any:
            began_s = time.thread_time()
            done = work(*args)
            file.write(f"{time.thread_time() - began_s}\n")
            return done

        return run

    StageRunner.forward, StageRunner.backward = counted(StageRunner.forward), counted(StageRunner.backward)


def cpu_of_steps(folder: Path, rank: int, steps: int) -> list[float]:
    """CPU seconds of each step's forwards and backwards; in front of them are those of the profile."""
    numbers = [float(line) for line in (folder / f"cpu-{rank}.txt").read_text().split()]
    each = 2 * MICRO_BATCHES
    return [sum(numbers[-each * k :][:each]) for k in range(steps, 0, -1)]


# -- one run --------------------------------------------------------------------------------------


def cores_of_others(ranks: Ranks) -> float:
    """Waits for the ranks to end; the mean number of cores that other processes had meanwhile."""
    processes = [psutil.Process(process.pid) for process in ranks.processes]
    began_s, busy_s, own_s = time.monotonic(), _busy_s(), 0.0
    end_s, end_busy_s = began_s, busy_s
    while all(process.is_alive() for process in ranks.processes):
        try:
            own_s = sum(sum(process.cpu_times()[:2]) for process in processes)
        except psutil.Error:
            break
        end_s, end_busy_s = time.monotonic(), _busy_s()
        time.sleep(0.2)
    codes = ranks.wait()
    assert codes == [0] * len(codes), ranks.logs()
    return (end_busy_s - busy_s - own_s) / (end_s - began_s)


def _busy_s() -> float:
    """CPU seconds that all processes of the machine have had."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system


def is_quiet(most: float, until_s: float) -> bool:
    """Waits until other processes have fewer than `most` cores, or until it is too late."""
    while time.monotonic() < until_s:
        busy_s = _busy_s()
        time.sleep(LOOK_S)
        if (_busy_s() - busy_s) / LOOK_S < most:
            return True
    return False


def law(plan: Plan, durations: Durations) -> SquareCubePoint:
    """The law's point at the speed that the ranks measured of themselves; each direction carries one message."""
    rate = float(plan.problem.cluster.bandwidth_bytes_per_s_DD[0, 1])
    compute_s = float((durations.forward_s_C + durations.backward_s_C).mean())
    config = plan.problem.workload.transformer
    return SquareCubePoint(config.hidden, rate, compute_s, plan.boundary_bytes(0, 0, 1, "activation") / rate)


def measure(hidden: int, bandwidth: str, steps: int) -> Measured:
    """Trains, and takes everything down."""
    plan = two_stages(hidden, bandwidth)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = TrainConfig(steps=steps, emulate_links=True)
        others = cores_of_others(start_ranks(plan, config, folder, fault=partial(count_cpu, name)))
        run = RunReader(folder).read_all()
        clock = utilisation_of_run(run)
        durations = replace(Durations.from_data(run.prediction()["durations"]), cores_N=None, machine_N=None)
        simulated = summarise_plan(plan, durations, steps=NUM_STEPS)
        cpu_s = zip(*(cpu_of_steps(folder, rank, steps) for rank in (0, 1)), strict=True)
        shares = [
            statistics.fmean(pair) / step_s for pair, step_s in zip(list(cpu_s)[1:], run.step_times_s(), strict=True)
        ]
        return Measured(
            shares, simulated.terms["compute"] / simulated.step_s, law(plan, durations).utilisation, clock.measured,
            statistics.median(run.step_times_s()), simulated.step_s, others,
        )  # fmt: skip


def together(hidden: int, runs: list[Measured]) -> Utilisation:
    """Medians over all steps of several runs, and of their predictions."""
    shares = [share for run in runs for share in run.shares]
    predicted = statistics.median(run.predicted for run in runs)
    return Utilisation(hidden, predicted, statistics.median(shares), min(shares), max(shares))


def said(found: Utilisation, runs: list[Measured]) -> str:
    """A line of the table."""
    law_share, clock, step_s, predicted_s, others = (
        statistics.median(getattr(run, name) for run in runs)
        for name in ("law", "clock", "step_s", "predicted_step_s", "others")
    )
    return (
        f"hidden {found.hidden:5}: computes {found.measured:6.1%} of a step ({found.least:.1%} to {found.most:.1%},"
        f" clock {clock:.1%}), predicted {found.predicted:6.1%} ({found.error:+.1%}), law {law_share:.1%};"
        f" step {1e3 * step_s:.0f} ms, predicted {1e3 * predicted_s:.0f} ms; others had {others:.2f} cores"
    )


def undisturbed(args: argparse.Namespace) -> dict[int, list[Measured]]:
    """Runs of every width, in turn, until there are enough or patience is over."""
    runs: dict[int, list[Measured]] = {width: [] for width in sorted(int(w) for w in args.hidden.split(","))}
    until_s = time.monotonic() + args.patience
    while len(short := [width for width, kept in runs.items() if len(kept) < args.repeats]):
        width = min(short, key=lambda w: len(runs[w]))
        if not is_quiet(args.others, until_s):
            break
        run = measure(width, args.bandwidth, args.steps)
        is_kept = run.others < args.others
        runs[width] += [run] if is_kept else []
        text = said(together(width, [run]), [run])
        print(text if is_kept else f"left out: hidden {width}, others had {run.others:.2f} cores", flush=True)
    return runs


def main() -> int:
    """Prints a line for every run and every width; returns 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", default="128,256,512,1024", help=f"widths, multiples of {HEAD_DIM}")
    parser.add_argument("--bandwidth", default="12 Mbit/s")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--others", type=float, default=0.3, help="most cores of other processes")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds")
    parser.add_argument("--plot", type=Path, metavar="FILE.html")
    args = parser.parse_args()
    runs = undisturbed(args)
    points = [together(width, kept) for width, kept in runs.items() if kept]
    print("all repeats:")
    for found in points:
        print(said(found, runs[found.hidden]))
    if args.plot and points:
        import holoviews as hv

        import hetplanner as hp

        hv.extension("bokeh")
        hv.save(hp.plots.utilisation(points), args.plot)
    rises = all(b.measured > a.measured for a, b in pairwise(points))
    worst = max((abs(p.error) for p in points), default=float("inf"))
    enough = all(len(kept) == args.repeats for kept in runs.values())
    print(f"rises: {rises}; worst prediction {worst:.1%} off (must {MUST:.0%}, aim {AIM:.0%}); all runs made: {enough}")
    return 0 if rises and enough and worst <= MUST else 1


if __name__ == "__main__":
    sys.exit(main())
