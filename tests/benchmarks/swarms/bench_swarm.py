"""Real swarms on this machine under scripted misfortune: what they must show, and what was measured.

    python tests/benchmarks/swarms/bench_swarm.py [storm] [kill] [cut] [half] [undisturbed] [links] [compare] [delayed]
        [--json FILE]

`storm`: kills, stops and as many joins in 60 steps with int8 traffic. `half`: half of all peers killed one by one, then
as many joined. `kill`: one kill at a time. `cut`: one cut link at a time, mended after a while: of a peer to the
coordinator, then between two peers of a stage. `links`: a swarm over slow links against the simulated steady state of
its plan. `compare`: the static executor, which goes on from its last checkpoint, under the same kills. `delayed`: two
stages of 7 million weights each, with prompt and with delayed updates. `undisturbed`: nine peers of speeds 1, 1.5 and 3
without faults. Speeds are emulated by waiting, so that the machine's own cores are no limit; faults are drawn from
seeds.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from static_restarts import run_static

from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.cost.elastic.swarm_costs import expected_speeds
from hetplanner.plan.elastic.settings import WiringSettings
from hetplanner.plan.train import TrainConfig
from hetplanner.simulator.simulation import simulate, summarise_trace
from hetplanner.swarm.launch.faults import MATE, Fault, FaultInjector, draw_faults
from hetplanner.swarm.launch.network_proxy import NetworkProxy
from hetplanner.swarm.launch.rehearsal import Rehearsal
from hetplanner.swarm.spec import spec_of
from tests.support.plans.factories import small_cluster, swarm_plan
from tests.support.swarms.swarm_runs import events_of, losses_of, reference_losses, small_spec, undisturbed_losses

UNLIKE = (3.0, 3.0, 3.0, 1.5, 1.5, 1.5, 1.0, 1.0, 1.0)
"""Of the peers in order of joining: the coordinator gives every stage one of each."""

Row = tuple[str, str, str, str]


def start(spec, run_dir, speeds, trainers, slots, **kept):
    """A swarm whose peers come in order, so that stages get equal speeds."""
    rehearsal = Rehearsal(spec, run_dir, **kept)
    rehearsal.start_coordinator()
    for number, speed in enumerate(speeds):
        rehearsal.start_peer(f"peer-{number}", speed)
        while not _has_joined(run_dir, number + 1):
            rehearsal.processes["coordinator"].join(0.02)
            if rehearsal.processes["coordinator"].exitcode is not None:
                raise SystemExit(f"the coordinator has ended; see {run_dir}")
    for number in range(trainers):
        rehearsal.start_trainer(f"trainer-{number}", slots)
    return rehearsal


def _has_joined(run_dir: Path, count: int) -> bool:
    return (run_dir / "events.jsonl").exists() and len(events_of(run_dir, "serving")) >= count


def run(spec, speeds, faults, trainers=2, slots=16, timeout_s=400.0, **kept):
    """Plays a run to its end; returns the storm with the run's folder."""
    run_dir = Path(tempfile.mkdtemp(prefix="swarm-"))
    with start(spec, run_dir, speeds, trainers, slots, **kept) as rehearsal:
        storm = FaultInjector(rehearsal, faults, seed=1)
        storm.run(timeout_s)
    return storm


def seconds_of(storm) -> dict[int, float]:
    """Seconds from commit to commit, by the step's number from 1; the first is left out, as peers came in it."""
    commits = [e for e in storm.events if e["kind"] == "commit"]
    return {b["version"][1]: b["time_s"] - a["time_s"] for a, b in pairwise(commits)}


def noticed(storm, kind: str) -> list[float]:
    """Seconds from a hit until the coordinator counted the peer as gone."""
    found = []
    for hit in storm.hits:
        if hit.kind == kind:
            after = [e["time_s"] - hit.time_s for e in storm.events if e["kind"] == "gone" and e["peer"] == hit.peer]
            found += [s for s in after if s >= 0][:1]
    return found


def served(storm) -> list[float]:
    """Seconds from a peer's order to join until it served; who joined before the first commit is left out."""
    found, began, started = [], {}, False
    for event in storm.events:
        started |= event["kind"] == "commit"
        if event["kind"] in ("joining", "waiting"):
            began.setdefault(event["peer"], event["time_s"])
        elif event["kind"] == "serving" and event["peer"] in began:
            seconds = event["time_s"] - began.pop(event["peer"])
            found += [seconds] if started else []
        elif event["kind"] == "gone":
            began.pop(event["peer"], None)
    return found


def closed(storm) -> list[float]:
    """Seconds from the first question to prepare until all peers had stepped."""
    return [sum(event["seconds"].values()) for event in storm.events if event["kind"] == "closed"]


def differences(storm) -> str:
    """Worst relative difference of a step's loss: from an undisturbed int8 run, and from one process without codec."""
    spec, found = storm.rehearsal.spec, losses_of(storm.rehearsal.run_dir)
    worst = [
        max(abs(a - b) / b for a, b in zip(found, wanted, strict=True))
        for wanted in (undisturbed_losses(spec), reference_losses(spec))
    ]
    return f"{worst[0]:.4%} worst of {len(found)} steps ({worst[1]:.4%} from one process without codec)"


def spread(values: list[float], unit: str = "s") -> str:
    """Median and worst."""
    return f"{statistics.median(values):.2f} {unit} (worst {max(values):.2f}, {len(values)} times)" if values else "-"


def equal_digests(storm) -> str:
    """What the coordinator found when it compared all replicas at the end."""
    found = [e for e in storm.events if e["kind"] == "digests"]
    replicas = sum(e["replicas"] for e in found)
    return f"{sum(e['different'] == 1 for e in found)} of {len(found)} stages equal ({replicas} replicas)"


def bench_storm(steps: int = 60) -> list[Row]:
    """The storm of the table."""
    spec = small_spec(steps=steps, micro_batches=24, codec="int8")
    speeds = [4.0 * s for s in UNLIKE]
    faults = draw_faults(5, steps, kills=22, stops=11, joins=22, speeds=(4.0, 6.0, 12.0))
    storm = run(spec, speeds, faults, slots=12)
    seconds = seconds_of(storm)
    killed = {h.step + 1 for h in storm.hits if h.kind == "kill"} - {h.step + 1 for h in storm.hits if h.kind == "stop"}
    touched = {h.step + d for h in storm.hits for d in (1, 2)}
    usual = statistics.median([s for step, s in seconds.items() if step not in touched] or list(seconds.values()))
    extra = [seconds[step] - usual for step in killed if step in seconds]
    happened = ", ".join(f"{n} {kind}" for kind, n in sorted(storm.happened.items()))
    return [
        ("storm: what happened", ">= 20 kills, 10 stops", "", happened),
        ("loss against the undisturbed run", "0.5 %", "0.02 %", differences(storm)),
        ("replicas at the end", "equal", "", equal_digests(storm)),
        ("kill noticed", "1 s", "0.4 s", spread(noticed(storm, "kill"))),
        ("hang noticed", "3 s", "2 s", spread(noticed(storm, "stop"))),
        ("step of a kill, over a steady-state one", "+ 2 s", "+ 0.5 s", spread(extra) + f"; undisturbed {usual:.2f} s"),
        ("join to serving", "2 s", "0.5 s", spread(served(storm))),
    ]


def bench_kill() -> list[Row]:
    """One kill at a time, in a swarm that is whole again when the next falls."""
    speed, kills = 8.0, (4, 8, 12, 16, 20)
    spec = small_spec(steps=23, micro_batches=48, codec="int8")
    faults = [Fault(step, "kill", 0.8) for step in kills]
    faults += [Fault(step + 1, "join", 0.1, f"joiner-{step}", speed=speed) for step in kills]
    storm = run(spec, [speed] * 9, faults, slots=12)
    seconds = seconds_of(storm)
    usual = statistics.median([seconds[step] for step in (3, 4, 7, 8, 11, 12, 15, 16, 19, 20)])
    extra = [seconds[step + 1] - usual for step in kills]
    return [
        ("single kills: noticed", "1 s", "0.4 s", spread(noticed(storm, "kill"))),
        ("single kills: step of the kill", "+ 2 s", "+ 0.5 s", spread(extra) + f"; undisturbed {usual:.2f} s"),
        ("single kills: join to serving", "2 s", "0.5 s", spread(served(storm))),
        ("single kills: loss", "0.5 %", "0.02 %", f"{differences(storm)}; {equal_digests(storm)}"),
    ]


def bench_cut() -> list[Row]:
    """One cut link at a time."""
    speed, to_coordinator, between_mates = 8.0, (4, 10, 16), (22, 28, 34)
    spec = small_spec(steps=39, micro_batches=48, codec="int8")
    faults = [Fault(step, "cut", 0.5, lasts_s=4.0) for step in to_coordinator]
    faults += [Fault(step, "cut", 0.5, other=MATE, lasts_s=4.0) for step in between_mates]
    storm = run(spec, [speed] * 9, faults, slots=12, network_proxy=NetworkProxy())
    found: dict[bool, list[float]] = {True: [], False: []}
    for hit in storm.hits:
        gone = [
            e["time_s"] - hit.time_s for e in storm.events if e["kind"] == "gone" and e["peer"] in (hit.peer, hit.other)
        ]
        found[hit.other == "coordinator"] += [s for s in gone if s >= 0][:1]
    lives = Counter(e["peer"] for e in storm.events if e["kind"] == "serving")
    gone = Counter(e["peer"] for e in storm.events if e["kind"] == "gone")
    return [
        ("cut to the coordinator: noticed", "3 s", "1.5 s", spread(found[True])),
        ("cut between mates: noticed", "3 s", "1.5 s", spread(found[False])),
        ("cut: came back", "all", "", f"{sum(n - 1 for n in lives.values())} of {sum(gone.values())} that went"),
        ("cut: loss", "0.5 %", "0.02 %", f"{differences(storm)}; {equal_digests(storm)}"),
    ]


def bench_half() -> list[Row]:
    """Half of the peers killed one by one, then as many joined."""
    speed, micro_batches = 8.0, 96
    spec = small_spec(steps=14, micro_batches=micro_batches, codec="int8")
    kills = [Fault(4, "kill", 0.3 + 0.6 * n) for n in range(4)]
    joins = [Fault(8, "join", 0.3 + 0.3 * n, f"joiner-{n}", speed=speed) for n in range(4)]
    storm = run(spec, [speed] * 9, [*kills, *joins], slots=24)
    seconds = seconds_of(storm)
    before, after = (micro_batches / statistics.median(seconds[k] for k in steps) for steps in ((3, 4), (11, 12, 13)))
    few = micro_batches / statistics.median(seconds[k] for k in (6, 7, 8))
    capacity = speed * min(_peers_of_stages(storm, at=7))
    return [
        (
            "half killed: throughput",
            ">= 0.8 of what is left",
            "0.9",
            f"{few / capacity:.2f} ({few:.1f} of {capacity:g}/s)",
        ),
        ("after as many joins", "full again", "", f"{after / before:.2f} of before ({before:.1f} -> {after:.1f}/s)"),
        ("half: loss, worst step", "0.5 %", "0.02 %", f"{differences(storm)}; {equal_digests(storm)}"),
    ]


def _peers_of_stages(storm, at: int) -> list[int]:
    """Serving peers by stage when so many steps were committed."""
    stages: dict[str, int] = {}
    for event in storm.events:
        if event["kind"] == "serving":
            stages[event["peer"]] = event["stage"]
        elif event["kind"] in ("gone", "joining", "waiting", "move"):
            stages.pop(event["peer"], None)
        elif event["kind"] == "commit" and event["version"][1] == at:
            break
    return [list(stages.values()).count(s) for s in range(storm.rehearsal.spec.num_stages)]


def bench_compare() -> list[Row]:
    """The same model, seeds, devices and kills; a killed device is there again after the same time."""
    speed, steps, kills, after_s, back_s = 8.0, 28, (4, 8, 12, 16, 20, 24), 0.5, 1.0
    spec = small_spec(steps=steps, micro_batches=24)
    faults = [Fault(step, "kill", after_s) for step in kills]
    faults += [Fault(step, "join", after_s + back_s, f"joiner-{step}", speed=speed) for step in kills]
    storm = run(spec, [speed] * 9, faults, slots=12)
    swarm_s = sum(seconds_of(storm).values())
    rows = [
        (
            f"swarm: step 1 to {steps}, {len(kills)} kills",
            "",
            "",
            f"{swarm_s:.1f} s, no step lost, loss {losses_of(storm.rehearsal.run_dir)[-1]:.6f}",
        )
    ]
    for every in (5, 2):
        folder = Path(tempfile.mkdtemp(prefix="static-"))
        static = run_static(spec, speed, kills, folder, after_s, back_s, every)
        told = f"{static.seconds:.1f} s, {static.steps_lost} steps lost, loss {static.loss:.6f}"
        rows.append((f"static, checkpoint every {every} steps", "", "", told))
    return rows


def bench_links() -> list[Row]:
    """Two stages of two peers over slow links: what the simulator says of the plan, and what the swarm does."""
    rows = []
    for bandwidth, latency in (("4 Mbit/s", "5 ms"), ("1 Mbit/s", "5 ms"), ("4 Mbit/s", "60 ms")):
        plan = _plan_over(bandwidth, latency)
        predicted_s = summarise_trace(simulate(steady_state_plan(plan))).step_s
        run_dir, config = Path(tempfile.mkdtemp(prefix="swarm-")), TrainConfig(steps=8, warmup_steps=5)
        with Rehearsal(spec_of(plan, config), run_dir, cluster=plan.problem.cluster) as rehearsal:
            rehearsal.start_coordinator()
            for number in range(plan.wiring.trainers):
                rehearsal.start_trainer(f"trainer-{number}", plan.wiring.slots)
            for peer, speed in expected_speeds(plan).items():
                rehearsal.start_peer(peer, speed)
            rehearsal.wait(300)
        step_s = statistics.median(e["seconds"] for e in events_of(run_dir, "commit")[2:])
        told = f"step {step_s:.2f} s, simulated {predicted_s:.2f} s: {predicted_s / step_s:.2f} of the throughput"
        rows.append((f"links of {bandwidth}, {latency}", "", "", told))
    return rows


def _plan_over(bandwidth: str, latency: str):
    """Two stages of two peers that take 1/16 s for a micro-batch, 64 of them a step."""
    spec = small_spec(stages=2, micro_batches=64)
    cluster = small_cluster(4, bandwidth=bandwidth, latency=latency)
    wiring = WiringSettings(trainers=2, slots=12)

    def plan_on(cluster):
        return swarm_plan(
            [2, 2], spec.first_ops[1:], cluster=cluster, workload=spec.workload, in_flight=12, wiring=wiring
        )

    plan = plan_on(cluster.replace(devices=_as_efficient(cluster, 1.0)))
    fast = max(speeds[plan.stage_of_peer[peer]] for peer, speeds in expected_speeds(plan).items())
    return plan_on(cluster.replace(devices=_as_efficient(cluster, 16.0 / fast)))


def _as_efficient(cluster, share: float):
    return tuple(device.replace(efficiency=share) for device in cluster.devices)


def bench_undisturbed() -> list[Row]:
    """Unlike speeds without faults, in steps of two sizes: to fill and drain the chain takes equally long in both."""
    unit, total, rows = 5.0, 5.0 * sum(UNLIKE) / 3, []
    for micro_batches in (192, 384):
        spec = small_spec(steps=5, micro_batches=micro_batches, codec="int8")
        storm = run(spec, [unit * s for s in UNLIKE], [], slots=32)
        rate = micro_batches / statistics.median(list(seconds_of(storm).values()))
        told = f"{rate / total:.3f} ({rate:.1f} of {total:g}/s)"
        rows += [
            (f"unlike speeds 1/1.5/3, {micro_batches} a step, 64 under way", ">= 0.9 of the sum", "0.95", told),
            ("closing a step, 3 x 3", "100 ms", "40 ms", spread([1e3 * s for s in closed(storm)], "ms")),
            ("undisturbed: loss, worst step", "0.5 %", "0.02 %", f"{differences(storm)}; {equal_digests(storm)}"),
        ]
    return rows


def bench_delayed(hidden: int = 768, steps: int = 12) -> list[Row]:
    """What closing a step costs with a model whose optimizer matters, and a step as a whole."""
    rows = []
    for delayed in (False, True, False, True):
        spec = small_spec(steps=steps, micro_batches=4, stages=2, hidden=hidden, delayed=delayed)
        storm = run(spec, [4.0] * 4, [], trainers=1, slots=4)
        name = "delayed" if delayed else "prompt"
        commits = [1e3 * e["seconds"]["commit"] for e in storm.events if e["kind"] == "closed"]
        found = losses_of(storm.rehearsal.run_dir)
        off = max(abs(a - b) / b for a, b in zip(found, reference_losses(spec), strict=True))
        rows += [
            (f"{name} updates: closing a step", "", "", spread([1e3 * s for s in closed(storm)], "ms")),
            (f"{name} updates: of that, the commit", "", "", spread(commits, "ms")),
            (f"{name} updates: a step", "", "", spread(list(seconds_of(storm).values()))),
            (f"{name} updates: loss, worst step", "1e-5", "", f"{off:.1e} from one process; {equal_digests(storm)}"),
        ]
    return rows


BENCHES = {
    "storm": bench_storm,
    "kill": bench_kill,
    "cut": bench_cut,
    "half": bench_half,
    "undisturbed": bench_undisturbed,
    "links": bench_links,
    "compare": bench_compare,
    "delayed": bench_delayed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="|".join(BENCHES), help="all, if none is named")
    parser.add_argument("--json", type=Path)
    parsed = parser.parse_args()
    if unknown := set(parsed.names) - BENCHES.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    rows = []
    for name in parsed.names or BENCHES:
        rows += BENCHES[name]()
        print(f"{name}: measured", flush=True)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))
    if parsed.json:
        parsed.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
