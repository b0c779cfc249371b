"""The fault matrix: faults thrown at real runs, one after the other, with nothing done by hand.

    python tests/benchmarks/swarms/bench_faults.py [static] [swarm] [--faults 200] [--per-run 10] [--kinds kill,term]
        [--seed 0] [--json FILE] [--table-of FILE ...]

`static`: a run of 4 ranks with a checkpoint every 5 steps. `swarm`: 6 peers in 3 stages. Both are started by
`hetplanner train` with an agent of their own, on a file system of their own that can be filled. For every kind of
fault the table says how soon it was noticed (the status or the events name it), how soon a further step was done (by
the restarted run, where the fault restarts it), how many steps were done again, and in how many runs the result was
that of an undisturbed run. A run passes when it ends as `finished` with exit code 0, all steps are there, the
model's bits are those of an undisturbed run (static) or every contribution counts once and no step's loss is off by
more than 0.05 % (swarm), and no process, socket or temporary file is left.

Needs a mount namespace: root, or a system that lets users make user namespaces.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import psutil
from fault_injection import STATIC_KINDS, SWARM_KINDS, Scene, inject

from hetplanner.plan.files.plan_files import save_plan
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, slow_swarm, small_cluster

DISK_BYTES = 2**28
POLL_S = 0.02
SPACING = {"static": 10, "swarm": 5}
"""Steps between two faults; a fault comes once training goes on after the one before."""
MEANWHILE = {"static": 12, "swarm": 8}
"""Steps a fault in which training may go on until it is noticed."""
PATIENCE_S = 180.0
RESTARTED = {
    "static": set(STATIC_KINDS) - {"pause 0.2 s", "cut telemetry", "disk full", "kill agent"},
    "swarm": {k for k in SWARM_KINDS if {"launcher", "coordinator", "checkpoint"} & set(k.split())} | {"term agent"},
}
"""Faults after which the run (of a swarm: its coordinator) starts again."""
MAX_LOSS_DIFFERENCE = 5e-4
IN_NAMESPACE = "HETPLANNER_BENCH_NAMESPACE"


@dataclass
class Hit:
    """A fault and what came of it. Seconds since it happened; None: never seen."""

    kind: str
    what: str
    step: int
    noticed_s: float | None = None
    again_s: float | None = None
    steps_repeated: int = 0
    message: str = ""


@dataclass
class Outcome:
    """A run under faults, or without."""

    hits: list[Hit] = field(default_factory=list)
    steps_repeated: int = 0
    exit_code: int | None = None
    state: str = ""
    steps: int = 0
    digest: str = ""
    losses: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Play:
    """One run from launch to end.

    Args:
        mode: static or swarm.
        steps: to train.
        kinds: of the faults, in order.
        root: an empty folder on a file system of its own.
    """

    def __init__(self, mode: str, steps: int, kinds: list[str], root: Path, seed: int) -> None:
        self.mode, self.steps, self.kinds = mode, steps, list(kinds)
        self.home, self.tmp, self.run_dir = root / "home", root / "tmp", root / "run"
        self.home.mkdir(mode=0o700)
        self.tmp.mkdir()
        self.scene = Scene(self.run_dir, self._agent_pid, random.Random(seed))
        self.outcome = Outcome()
        self._sizes: dict[Path, int] = {}
        self._done: Counter[int] = Counter()
        self._restarts = 0
        self._last_new_s = time.monotonic()
        plan = root / "plan.json"
        save_plan(plan_of(mode), plan)
        words = ["train", str(plan), "--steps", str(steps), "--checkpoint-every", "5", "--max-restarts", "1000"]
        words += ["-o", str(self.run_dir)] + ([] if mode == "static" else ["--emulate-links"])
        self._log = (root / "client.txt").open("wb")
        environment = os.environ | {"HETPLANNER_HOME": str(self.home), "TMPDIR": str(self.tmp)}
        self.client = subprocess.Popen(
            [sys.executable, "-m", "hetplanner.cli", *words],
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    def run(self) -> Outcome:
        """Plays all faults and waits for the end."""
        next_step = 10  # there is a checkpoint
        while self.client.poll() is None:
            self._read()
            if self.kinds and self._step >= next_step and self._agent_pid() is not None:
                self._play(self.kinds.pop(0))
                next_step = self._step + SPACING[self.mode]
            if time.monotonic() - self._last_new_s > PATIENCE_S:
                self.outcome.wrong.append(f"no step for {PATIENCE_S:g} s: {self._status().get('message')}")
                self._end_all()
            time.sleep(POLL_S)
        self._read()
        self._judge()
        return self.outcome

    # One fault.

    def _play(self, kind: str) -> None:
        before, agent, known, began_s = self._status(), self._agent_pid(), self._events(), time.monotonic()
        self._close_last()
        hit = Hit(kind, "", self._step)
        restarts = self._restarts + (kind in RESTARTED[self.mode])
        self.outcome.hits.append(hit)
        hit.what = inject(kind, self.scene)
        if kind == "disk full":
            began_s = time.monotonic()  # what counts is when it goes on once there is space
        done = self._step if kind != "disk full" else hit.step
        while self.client.poll() is None and time.monotonic() - began_s < PATIENCE_S:
            self._read()
            if hit.noticed_s is None and (told := self._told(before, agent, known)):
                hit.noticed_s, hit.message = time.monotonic() - began_s, told
            if self._restarts < restarts:
                done = self._step  # steps that the run still ends before it restarts
            elif self._step > done and (hit.noticed_s is not None or not _ends_training(kind)):
                break
            time.sleep(POLL_S)
        hit.again_s = time.monotonic() - began_s if self._step > done else None
        if hit.again_s is None and not self.client.poll():
            self.outcome.wrong.append(f"{kind} ({hit.what}): no further step")

    def _close_last(self) -> None:
        """Counts the steps that were done again because of the fault before."""
        if self.outcome.hits:
            before = sum(h.steps_repeated for h in self.outcome.hits)
            self.outcome.hits[-1].steps_repeated = self._num_repeated - before

    def _told(self, before: dict, agent: int | None, known: int) -> str:
        """What status, events or agent tell that they did not before."""
        status = self._status()
        for name in ("restarts", "state", "degraded"):
            if status.get(name) != before.get(name):
                return str(status.get("message") if name != "degraded" else status.get(name))
        if self._agent_pid() not in (None, agent):
            return "another agent"
        for event in self._event_list()[known:]:
            if event.get("kind") in ("gone", "boot", "process", "restarted", "trainer lost", "disk"):
                return json.dumps(event)[:300]
        return ""

    # What the run's files say.

    @property
    def _step(self) -> int:
        return max(self._done, default=-1) + 1

    @property
    def _num_repeated(self) -> int:
        return sum(self._done.values()) - len(self._done)

    def _read(self) -> None:
        """New lines about steps of rank 0 (or the coordinator). A file that was cut is read on from its end."""
        path = self.run_dir / "rank-0.jsonl"
        try:
            size = path.stat().st_size
            offset = self._sizes.get(path, 0)
            if size < offset:
                self._sizes[path] = size
                return
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._sizes[path] = offset + len(whole)
        for line in whole.splitlines():
            self._restarts += b'"restart"' in line[:30]
            if b'"step"' in line[:20]:
                try:
                    self._done[int(json.loads(line)["step"])] += 1
                except (ValueError, KeyError, TypeError):
                    continue
                self._last_new_s = time.monotonic()

    def _status(self) -> dict:
        try:
            return json.loads((self.run_dir / "status.json").read_text())
        except (OSError, ValueError):
            return {}

    def _event_list(self) -> list[dict]:
        try:
            lines = (self.run_dir / "events.jsonl").read_bytes().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [event for event in found if isinstance(event, dict)]

    def _events(self) -> int:
        return len(self._event_list())

    def _agent_pid(self) -> int | None:
        """The agent that is at work, by its log."""
        with contextlib.suppress(OSError, psutil.Error):
            started = re.findall(r"agent (\d+) of", (self.home / "agent" / "agent.log").read_text())
            if started and psutil.Process(int(started[-1])).status() != psutil.STATUS_ZOMBIE:
                return int(started[-1])
        return None

    # The end.

    def _judge(self) -> None:
        outcome, status = self.outcome, self._status()
        outcome.exit_code, outcome.state, outcome.steps = self.client.wait(), status.get("state", ""), self._step
        self._close_last()
        outcome.steps_repeated = self._num_repeated
        if self.kinds:
            outcome.wrong.append(f"{len(self.kinds)} faults found no run")
        if (outcome.state, outcome.exit_code) != ("finished", 0):
            outcome.wrong.append(f"{outcome.state} (exit code {outcome.exit_code}): {status.get('message')}")
        if outcome.state == "finished" and outcome.steps < self.steps:
            outcome.wrong.append(f"FALSE FINISHED: {outcome.steps} of {self.steps} steps")
        model = self.run_dir / "model.safetensors"
        outcome.digest = hashlib.sha256(model.read_bytes()).hexdigest() if model.exists() else "none"
        if self.mode == "swarm":
            self._judge_commits()
        self._judge_left()

    def _judge_commits(self) -> None:
        commits: dict[int, dict] = {}
        for event in self._event_list():
            if event.get("kind") == "commit":
                commits[event["version"][1]] = event  # a step that was set back counts as it was done last
        self.outcome.losses = [commits[s]["loss"] for s in sorted(commits)]
        missing = [s for s in range(1, self.steps + 1) if s not in commits]
        if missing:
            self.outcome.wrong.append(f"steps without a commit: {missing[:10]}")
        micro_batches = plan_of("swarm").num_micro_batches
        for step, event in commits.items():
            by_stage: Counter[int] = Counter()
            for _, stage, count, _ in event.get("peers", []):
                by_stage[stage] += count
            if event.get("peers") and set(by_stage.values()) != {micro_batches}:
                self.outcome.wrong.append(f"step {step}: contributions {dict(by_stage)} of {micro_batches}")

    def _judge_left(self) -> None:
        deadline = time.monotonic() + 6.0
        while (left := self.scene.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            self.outcome.wrong.append(f"processes left: {sorted(left)}")
        self._end_all()
        remains = sorted(p.name for p in self.tmp.iterdir())
        if remains:
            self.outcome.wrong.append(f"temporary files left: {remains[:5]}")
        drafts = [str(p.relative_to(self.run_dir)) for p in self.run_dir.rglob("*") if _is_draft(p)]
        if drafts:
            self.outcome.wrong.append(f"drafts left: {drafts[:5]}")

    def _end_all(self) -> None:
        """Ends client, agent and what is left of the run."""
        pid = self._agent_pid()
        victims = [*self.scene.processes().values(), *([psutil.Process(pid)] if pid else [])]
        for process in victims:
            try:
                process.kill()
            except psutil.Error:
                continue
        if self.client.poll() is None:
            self.client.kill()
        self._log.close()


def _is_draft(path: Path) -> bool:
    sockets = path.is_socket() or path.is_fifo()
    return sockets or path.suffix in (".part", ".tmp") or path.name.startswith((".status-", "tmp", ".draft"))


def _ends_training(kind: str) -> bool:
    """Whether a fault must be noticed before training can go on."""
    return kind not in ("pause 0.2 s", "cut telemetry", "disk full")


def plan_of(mode: str):
    """Four ranks of tiny-gpt in two stages; or six peers in three."""
    if mode == "static":
        workload = preset("tiny-gpt", global_batch=8, micro_batch=2)
        half = len(workload.graph.ops) // 2
        return chain_plan(shares=(2, 2), cuts=(half,), cluster=small_cluster(4), workload=workload)
    return slow_swarm((2, 2, 2), peaks=(4e9, 8e9))


def play(mode: str, steps: int, kinds: list[str], seed: int) -> Outcome:
    """A run on a file system of its own, which is gone afterwards unless something was wrong."""
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", root], check=True)
    outcome = Play(mode, steps, kinds, root, seed).run()
    if outcome.wrong:
        kept = Path(tempfile.mkdtemp(prefix="faults-kept-"))
        subprocess.run(["cp", "-a", f"{root}/.", kept], check=True)
        outcome.wrong.append(f"kept in {kept}")
    subprocess.run(["umount", "-l", root], check=True)
    root.rmdir()
    return outcome


def bench(mode: str, faults: int, per_run: int, kinds: tuple[str, ...], seed: int) -> dict:
    """Runs with `per_run` faults each, until so many have happened."""
    rng = random.Random(seed)
    plain: dict[int, Outcome] = {}
    outcomes = []
    deck: list[str] = []
    while faults > 0:
        drawn = []
        while len(drawn) < min(per_run, faults):
            deck = deck or rng.sample(kinds, len(kinds))  # every kind equally often
            drawn.append(deck.pop())
        faults -= len(drawn)
        steps = SPACING[mode] * (len(drawn) + 2) + MEANWHILE[mode] * len(drawn)
        if steps not in plain:
            plain[steps] = play(mode, steps, [], seed)
            print(f"{mode}: undisturbed, {steps} steps: {plain[steps].state} {plain[steps].wrong}", flush=True)
        outcome = play(mode, steps, drawn, rng.randrange(2**31))
        _compare(mode, outcome, plain[steps])
        outcomes.append(outcome)
        for hit in outcome.hits:
            seconds = f"noticed {_s(hit.noticed_s)} again {_s(hit.again_s)}"
            print(
                f"  {hit.kind:26} {hit.what:34.34} step {hit.step:4} {seconds}  {hit.message[:90]}",
                flush=True,
            )
        print(f"{mode}: {len(drawn)} faults: {'; '.join(outcome.wrong) or 'as undisturbed'}", flush=True)
    return {"mode": mode, "outcomes": [asdict(o) for o in outcomes]}


def _compare(mode: str, outcome: Outcome, plain: Outcome) -> None:
    if mode == "static" and outcome.digest != plain.digest:
        outcome.wrong.append(f"model differs from the undisturbed run's ({outcome.digest[:8]}, {plain.digest[:8]})")
    if mode == "swarm" and outcome.losses and len(outcome.losses) == len(plain.losses):
        pairs = zip(outcome.losses, plain.losses, strict=True)
        worst = max(abs(a - b) / b for a, b in pairs)
        if worst > MAX_LOSS_DIFFERENCE:
            outcome.wrong.append(f"loss is off by {worst:.4%}")


def _s(seconds: float | None) -> str:
    return "    -" if seconds is None else f"{seconds:5.2f}"


def table(found: dict) -> str:
    """Markdown: a row for every kind of fault."""
    by_kind: dict[str, list[tuple[dict, bool]]] = defaultdict(list)
    for outcome in found["outcomes"]:
        for hit in outcome["hits"]:
            by_kind[hit["kind"]].append((hit, not outcome["wrong"]))
    same = "model bit-identical" if found["mode"] == "static" else "loss within 0.05 %"
    lines = [
        f"| {found['mode']}: fault | times | noticed after, s (worst) | training again after, s (worst)"
        f" | steps repeated (worst) | {same}, nothing lost or left |",
        "|---|---|---|---|---|---|",
    ]
    for kind, rows in sorted(by_kind.items()):
        hits = [hit for hit, _ in rows]
        noticed = [h["noticed_s"] for h in hits if h["noticed_s"] is not None]
        again = [h["again_s"] for h in hits if h["again_s"] is not None]
        repeated = [h["steps_repeated"] for h in hits]
        lines.append(
            f"| {kind} | {len(hits)} | {_spread(noticed)} | {_spread(again)}"
            f" | {statistics.median(repeated):g} ({max(repeated)}) | {sum(good for _, good in rows)} of {len(hits)} |"
        )
    runs, good = len(found["outcomes"]), sum(not o["wrong"] for o in found["outcomes"])
    repeated = sum(o["steps_repeated"] for o in found["outcomes"])
    hits = sum(map(len, by_kind.values()))
    lines.append(f"\n{hits} faults in {runs} runs; {good} runs as undisturbed; {repeated} steps done again.")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({max(values):.2f})" if values else "-"


def enter_namespace() -> None:
    """Starts this program again where it may mount file systems that nobody else sees."""
    if os.environ.get(IN_NAMESPACE):
        return
    words = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    os.environ[IN_NAMESPACE] = "1"
    os.execvp(words[0], [*words, sys.executable, *sys.argv])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modes", nargs="*", choices=["static", "swarm", []], default=[])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--per-run", type=int, default=10)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="writes what was measured")
    parser.add_argument("--table-of", type=Path, nargs="+", help="prints the tables of such files; runs nothing")
    options = parser.parse_args()
    if options.table_of:
        print("\n\n".join(table(one) for path in options.table_of for one in json.loads(path.read_text())))
        return
    enter_namespace()
    found = []
    for mode in options.modes or ["static", "swarm"]:
        kinds = tuple(filter(None, options.kinds.split(","))) or (STATIC_KINDS if mode == "static" else SWARM_KINDS)
        found.append(bench(mode, options.faults, options.per_run, kinds, options.seed))
        print(table(found[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
