"""Predicted against measured step time over hosts whose links the kernel limits; as root on Linux.

    python tests/benchmarks/prediction/bench_hosts.py [--steps 20] [--repeat 1] [--only 2x2] [--undisturbed] [--probed]
        [--json]

A setting is a bed of hosts (`tests/support/hosts/host_bed.py`), on each of which a launcher starts the host's ranks as
the README says. Measured is the median of a step's seconds, without the first three steps, over all ranks.

* `predicted` is what rank 0 writes before step 1, and `error` is of this.
* `by file` is the same without what the ranks measured of their links.
* `cores` are the processors that the ranks had together while they profiled themselves: the hosts of a bed are
  namespaces of one machine, and share what it has.

With `--probed` the cluster file is one that `hetplanner cluster probe` wrote from these hosts; else it states the
rates that were set. With `--undisturbed` whatever else runs on this machine gets a hundredth of the processors while
ranks compute (they are of the highest priority from the moment when they look for each other); not beside tests that
others wait for. Real-time priority would not do: one rank would compute for 100 ms while another waits for a processor.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.formats.cluster_files import load_cluster, save_cluster
from hetplanner.cluster.model import Cluster
from hetplanner.launchers.interface import LAUNCH
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import ADDRESS_VARIABLE, HOST_VARIABLE, ranks_by_host
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.measure.prediction import PREDICTION_FILE
from hetplanner.workload.presets import preset
from hetplanner.workload.workload import Workload
from tests.benchmarks.prediction.bench_prediction import with_codec
from tests.support.hosts.host_bed import HEAD, PORT, HostBed, HostSpec
from tests.support.hosts.netns import processes
from tests.support.hosts.shaping import limit_connections
from tests.support.plans.factories import chain_plan
from tests.support.plans.grouped import in_groups
from tests.support.processes.patience import HANG_S, until

ROOT = Path(__file__).parents[3]
STORE_PORT = 29500
SKIPPED_STEPS = 3
NAMES = "abcd"
COLUMNS = (("predicted", 10), ("measured", 10), ("error", 8), ("by file", 10), ("cores", 5))
HEADER = f"{'Mbit/s of hosts':34} " + " ".join(f"{name:>{width}}" for name, width in COLUMNS)


@dataclass(frozen=True)
class Setting:
    """A plan over hosts.

    Attributes:
        stages, replicas: the plan's shape; stage by stage its replicas take the devices in order.
        mbits: egress of each host in Mbit/s.
        codec: of all messages between stages and of the reduction, by `bench_prediction.with_codec`.
        ranks: devices of each host; empty: one each.
        order: the hosts in the order in which their devices are taken, as "abab"; empty: host by host.
        site_mbits: hosts a and b are at one site, the others at another, and this is the rate between the two.
        window_mbits: what a single connection carries, as over a path that is long; then hosts have no other limit.
            Two kB of each connection pass at once, a token bucket's least: of four parts of 64 kB an eighth.
        connections: between two ranks.
        degrees: devices of each rank, which divide its layers; empty: one each.
    """

    stages: int
    replicas: int
    mbits: tuple[int, ...]
    codec: str = "none"
    ranks: tuple[int, ...] = ()
    order: str = ""
    site_mbits: int | None = None
    window_mbits: int | None = None
    connections: int = 1
    degrees: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """What the table calls it."""
        ranks = self.ranks or (1,) * len(self.mbits)
        hosts = " ".join(f"{n}×{rate}" if n > 1 else str(rate) for n, rate in zip(ranks, self.mbits, strict=True))
        more = f" {self.order}" * bool(self.order) + f" | {self.site_mbits}" * bool(self.site_mbits)
        more += f" by {self.connections} × {self.window_mbits}" * bool(self.window_mbits)
        more += f" of {' '.join(map(str, self.degrees))}" * bool(self.degrees)
        return f"{self.stages}x{self.replicas} {self.codec}: {hosts}{more}"

    def bed(self, factor: float = 1.0) -> HostBed:
        """The hosts, not yet made, with so many times the rates."""
        bits, far = 1e6 * factor, "far" if self.site_mbits else "near"
        sites = ("near", "near", far, far)
        hosts = [HostSpec(n, bits * rate, site=s) for n, rate, s in zip(NAMES, self.mbits, sites, strict=False)]
        return HostBed(hosts, site_rates={("near", "far"): bits * self.site_mbits} if self.site_mbits else None)

    def limit_connections(self, bed: HostBed) -> None:
        """Sets what a single connection of the hosts carries, if that is limited."""
        if self.window_mbits is not None:
            for host in bed.hosts:
                limit_connections(bed.namespace(host), PORT, 1e6 * self.window_mbits)

    def cluster(self, factor: float = 1.0) -> Cluster:
        """The hosts' cluster file, which states so many times their rates."""
        return self.bed(factor).cluster(dict(zip(NAMES, self.ranks or (1,) * len(self.mbits), strict=False)))

    def plan(self, workload: Workload, cluster: Cluster) -> Plan:
        """The plan over these hosts, by their cluster file."""
        if self.order:
            cluster = cluster.subset([f"{h}-{self.order[:i].count(h)}" for i, h in enumerate(self.order)])
        m, ends = workload.num_micro_batches, workload.boundaries
        shares = [m // self.replicas + (r < m % self.replicas) for r in range(self.replicas)]
        cuts = [ends[len(ends) * s // self.stages] for s in range(1, self.stages)]
        plan = with_codec(chain_plan(shares, cuts, cluster=cluster, workload=workload), self.codec)
        return in_groups(plan, self.degrees) if self.degrees else plan


SETTINGS = (
    Setting(2, 1, (10, 10)),
    Setting(2, 1, (500, 500), "int8"),
    Setting(3, 1, (10, 10, 10), "int8"),
    Setting(3, 1, (50, 50, 50)),
    Setting(3, 1, (50, 50, 50), "topk"),
    Setting(3, 1, (200, 200, 200)),
    Setting(3, 1, (20, 100, 50)),
    Setting(3, 1, (1000, 1000, 1000)),
    Setting(2, 2, (50, 50, 50, 50)),
    Setting(2, 2, (20, 50, 100, 200)),
    Setting(2, 2, (20, 50, 100, 200), "topk"),
    Setting(2, 2, (100, 100), ranks=(2, 2)),
    Setting(2, 2, (30, 100), "int8", ranks=(2, 2)),
    Setting(2, 2, (50, 50), ranks=(2, 2), order="abab"),
    Setting(2, 2, (50, 30, 100), ranks=(2, 1, 1)),
    Setting(2, 2, (50, 30, 100), "int8", ranks=(1, 2, 1), order="abcb"),
    Setting(1, 4, (50, 50, 50, 50)),
    Setting(1, 4, (100, 50, 200, 100), "int8"),
    Setting(1, 4, (100, 100), ranks=(2, 2)),
    Setting(1, 4, (1000, 1000, 1000, 1000)),
    Setting(2, 2, (200, 200, 200, 200), site_mbits=50),
    Setting(2, 1, (10, 10), degrees=(2, 2)),
    Setting(2, 1, (50, 20), degrees=(1, 2)),
    Setting(2, 1, (1000, 1000), degrees=(2, 2)),
    Setting(2, 1, (1000, 1000), degrees=(2, 1)),
    Setting(2, 1, (80, 80), window_mbits=20),
    Setting(2, 1, (80, 80), window_mbits=20, connections=4),
)


@dataclass(frozen=True)
class Outcome:
    """One run: seconds of a step, as it was foretold in two ways and as it was; cores that the ranks had together."""

    predicted_s: float
    by_file_s: float
    measured_s: float
    cores: float


def start(bed: HostBed, plan: Plan, folders: dict[str, Path]) -> list[subprocess.Popen[str]]:
    """One launcher on each host, the first node first."""
    hosts = ranks_by_host(plan)
    endpoint = f"{bed.address(next(iter(hosts)))}:{STORE_PORT}"
    started = []
    for node, (host, ranks) in enumerate(hosts.items()):
        argv = [sys.executable, *LAUNCH, "--rdzv-backend=hetplanner"]
        argv += [f"--rdzv-endpoint={endpoint}", f"--rdzv-conf=rank={node}", f"--nnodes={len(hosts)}"]
        argv += [f"--nproc-per-node={len(ranks)}", "--max-restarts=0", "--log-dir=/dev/null"]
        argv += ["-m", "hetplanner.runtime.worker", str(folders[host] / "plan.json")]
        env = {HOST_VARIABLE: host, ADDRESS_VARIABLE: bed.address(host), "OMP_NUM_THREADS": "1"}
        with (folders[host] / "torchrun.txt").open("w") as log:
            started.append(bed.popen(host, argv, env=env, cwd=ROOT, stdout=log, stderr=log))
    return started


def probed(bed: HostBed, stated: Cluster) -> Cluster:
    """The cluster file that a probe of the hosts' links writes. Raises SystemExit with what a failed probe said."""
    before, after, hosts = (bed.folder / name for name in ("stated.json", "probed.json", "hosts.toml"))
    save_cluster(stated, before)
    lines = ['format = "hetplanner/hosts@1"', f"ssh_config = {json.dumps(str(bed.ssh_config))}"]
    for name in bed.hosts:
        lines += [f"[hosts.{name}]", f'address = "{bed.address(name)}"', f"python = {json.dumps(sys.executable)}"]
    hosts.write_text("\n".join(lines) + "\n")
    argv = [sys.executable, "-m", "hetplanner.cli", "cluster", "probe", before, "--hosts", hosts, "-o", after]
    done = bed.run(HEAD, [*map(str, argv), "--only", "links"], timeout=HANG_S)
    if done.returncode:
        sys.exit(done.stderr)
    return load_cluster(after)


def write_run(plan: Plan, config: TrainConfig, folder: Path) -> None:
    """plan.json and run.json."""
    folder.mkdir(parents=True)
    save_plan(plan, folder / "plan.json")
    fields = {"format": "hetplanner/run@1"} | config.model_dump(mode="json")
    (folder / "run.json").write_text(json.dumps(fields))


def undisturb(bed: HostBed, folders: dict[str, Path], num_ranks: int) -> None:
    """Waits until all ranks have begun to connect or one has failed; they go before other programs from then on."""

    def connecting() -> bool:
        texts = [path.read_text() for folder in folders.values() for path in folder.glob("rank-*.jsonl")]
        found = sum('"type": "phase", "name": "connecting"' in text for text in texts)
        return found == num_ranks or any('"type": "error"' in text for text in texts)

    until(connecting, "the ranks do not connect")
    for host in folders:
        for thread in (task for pid in processes(bed.namespace(host)) for task in Path(f"/proc/{pid}/task").glob("*")):
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), -20)


def run(setting: Setting, bed: HostBed, plan: Plan, args: argparse.Namespace) -> Outcome:
    """Trains on the hosts, and reads what the ranks wrote. Raises SystemExit with the logs of a run that failed."""
    folders = {host: bed.home(host) / "run" for host in ranks_by_host(plan)}
    for folder in folders.values():
        write_run(plan, TrainConfig(steps=args.steps, connections=setting.connections), folder)
    started = start(bed, plan, folders)
    if args.undisturbed:
        undisturb(bed, folders, len(plan.ranks))
    codes = [process.wait(HANG_S) for process in started]
    if any(codes):
        sys.exit(f"{setting.label}: exit codes {codes}\n" + "\n".join(map(_last_words, folders.values())))
    return outcome(plan, list(folders.values()))


def outcome(plan: Plan, folders: Sequence[Path]) -> Outcome:
    """What the ranks wrote; rank 0 in the first folder."""
    told = json.loads((folders[0] / PREDICTION_FILE).read_text())
    ranks = [list(_lines(path)) for folder in folders for path in folder.glob("rank-*.jsonl")]
    return Outcome(
        predicted_s=told["step_s"],
        by_file_s=told["cluster_file_step_s"],
        measured_s=statistics.median(_step_s(rank) for rank in ranks if any(line["type"] == "step" for line in rank)),
        cores=sum(told["durations"]["cores_N"]),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text().splitlines())


def _step_s(lines: Sequence[dict[str, Any]]) -> float:
    seconds = [line["end_s"] - line["start_s"] for line in lines if line["type"] == "step"]
    return statistics.median(seconds[SKIPPED_STEPS:])


def _last_words(folder: Path) -> str:
    return "\n".join(f"{path}: {path.read_text()[-1500:]}" for path in sorted(folder.glob("*.txt")))


def small(workload: Workload, layers: int) -> Workload:
    """The workload with so many layers: hosts that share a machine's cores must not compute all the time."""
    assert workload.transformer is not None
    return workload.replace(transformer=workload.transformer.replace(layers=layers))


def bench(setting: Setting, args: argparse.Namespace) -> dict[str, Any]:
    """Medians over some runs of one setting, as a row of the table."""
    workload, outcomes = small(preset(args.preset), args.layers), []
    for _ in range(args.repeat):
        with setting.bed() as bed:
            setting.limit_connections(bed)
            stated = setting.cluster(args.file_factor)
            plan = setting.plan(workload, probed(bed, stated) if args.probed else stated)
            outcomes.append(run(setting, bed, plan, args))
    row = {f.name: statistics.median(getattr(one, f.name) for one in outcomes) for f in fields(Outcome)}
    return {"setting": setting.label, "error": row["predicted_s"] / row["measured_s"] - 1.0} | row


def show(row: dict[str, Any]) -> str:
    """A row of the table."""
    times = (f"{1e3 * row[name]:8.1f}ms" for name in ("predicted_s", "measured_s", "by_file_s"))
    predicted, measured, by_file = times
    error = f"{100 * row['error']:+7.1f}%"
    return " ".join((f"{row['setting']:34}", predicted, measured, error, by_file, f"{row['cores']:5.2f}"))


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Mean and worst of the errors."""
    worst = max(rows, key=lambda row: abs(row["error"]))
    mean = statistics.mean(abs(row["error"]) for row in rows)
    return f"mean |error| {100 * mean:.1f} %, worst {100 * worst['error']:+.1f} % ({worst['setting']})"


def main() -> None:
    """Prints the table, or JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=1, help="runs of every setting, of which the medians count")
    parser.add_argument("--preset", default="tiny-gpt")
    parser.add_argument("--layers", type=int, default=3, help="of the model")
    parser.add_argument("--only", default="", help="settings whose name holds this")
    parser.add_argument("--undisturbed", action="store_true", help="other programs wait while ranks compute")
    parser.add_argument("--probed", action="store_true", help="the cluster file is one that a probe wrote")
    parser.add_argument("--file-factor", type=float, default=1.0, help="of the rates, in the cluster file")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else ranks of high priority would stay
    rows = []
    if not args.json:
        print(HEADER, flush=True)
    for setting in SETTINGS:
        if args.only in setting.label:
            rows.append(bench(setting, args))
            print(json.dumps(rows[-1]) if args.json else show(rows[-1]), flush=True)
    if not args.json:
        print(summary(rows))


if __name__ == "__main__":
    main()
