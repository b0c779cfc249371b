"""Averaging a stage's gradients among three processes: ours, and hivemind's DecentralizedAverager where it is.

    python tests/benchmarks/swarms/bench_averaging.py [--elements 1000000] [--hivemind PYTHON]

PYTHON: an interpreter that has hivemind (it need not have this package). Without one that is said, and ours is measured
alone. A round is timed from when all three are ready. In the last round one of the three is killed after it has begun.
"""

import argparse
import contextlib
import json
import multiprocessing as mp
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import torch

from hetplanner.codecs.spec import NO_CODEC
from hetplanner.elastic.protocol.identity import Member, Replica, Stamp
from hetplanner.swarm.peer.averaging import Averager, Meeting
from hetplanner.swarm.peer.engine import Sum

ROUNDS, PEERS = 8, 3


def drawn(size, number, rank):
    """What a process brings to a round."""
    return torch.randn(size, generator=torch.Generator().manual_seed(PEERS * number + rank))


def end(results, code):
    """Ends this process at once, when what it told has been passed on."""
    results.close()
    results.join_thread()
    os._exit(code)


def work(rank, size, ports, results, barrier, aborted):
    """One process: whole rounds, then one in which the last is killed, then what is left tries again.

    As in a swarm all-reduces run on threads, and whoever still waits for the dead is told by who has noticed: there the
    coordinator says so.
    """
    torch.set_num_threads(1)
    averager = Averager("127.0.0.1", 10.0, NO_CODEC)
    if rank == 0:
        for _ in range(PEERS - 1):
            ports.put(averager.open_store())
    port = averager.open_store() if rank == 0 else ports.get()
    replicas = tuple(Replica(Member(f"p{r}", Stamp(1, r)), f"127.0.0.1:{r + 1}", False) for r in range(PEERS))

    def reduce(number, group, found):
        mine = Sum(drawn(size, number, rank), 1, 0.0)
        meeting = Meeting(Stamp(1, number), replicas[rank].member, group, (), size, lambda address: port)
        try:
            found.append(averager.reduce(mine, meeting))
        except RuntimeError:
            aborted.set()

    for number in range(ROUNDS + 1):
        barrier.wait()
        began_s = time.monotonic()
        if number == ROUNDS and rank == PEERS - 1:
            end(results, 9)  # the others are in the middle of their all-reduce with it
        group, at, found = replicas, number, []
        thread = threading.Thread(target=reduce, args=(at, group, found), daemon=True)
        thread.start()
        while not found and not aborted.is_set():
            thread.join(0.001)
        text = ""
        if not found:
            text = f"noticed after {time.monotonic() - began_s:.2f} s"
            group, at = replicas[:-1], number + 1  # the coordinator names another attempt, without whom is gone
            averager.drop()
            reduce(at, group, found)
        took_s = time.monotonic() - began_s
        wanted = sum(drawn(size, at, r).double() for r in range(len(group)))
        error = float((found[0].gradient.double() - wanted).abs().max()) / len(group)
        results.put((number, rank, took_s, error, found[0].count, text))
    end(results, 0)


def ours(size):
    """Rounds of ours."""
    context = mp.get_context("spawn")
    ports, results = context.Queue(), context.Queue()
    barrier, aborted = context.Barrier(PEERS), context.Event()
    processes = [context.Process(target=work, args=(r, size, ports, results, barrier, aborted)) for r in range(PEERS)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in range(ROUNDS * PEERS + PEERS - 1)]
    for process in processes:
        process.join(10)
        process.kill()
    return found


def theirs(python, size):
    """Rounds of hivemind; None: it is not there."""
    if python is None or subprocess.run([python, "-c", "import hivemind"], capture_output=True, check=False).returncode:
        return None
    script = Path(__file__).with_name("hivemind_rounds.py")
    env = os.environ | {"OMP_NUM_THREADS": "1"}  # with more, torch hangs in the processes that hivemind forks
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        arguments = [python, str(script), str(size), str(found)]
        process = subprocess.Popen(arguments, env=env, start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            process.wait(240)
        finally:
            with contextlib.suppress(ProcessLookupError):  # hivemind's own processes outlive whoever was killed
                os.killpg(process.pid, signal.SIGKILL)
        if not found.exists():
            raise SystemExit(f"hivemind: ended with {process.returncode} and no result")
        return json.loads(found.read_text())


def tell(name, found):
    """A round's seconds are those of the slowest; the first makes connections and is left out."""
    took = [max(r[2] for r in found if r[0] == number) for number in range(1, ROUNDS)]
    whole = [r for r in found if r[0] < ROUNDS]
    complete = sum(all(r[4] == PEERS for r in whole if r[0] == n) for n in range(ROUNDS))
    error = max(r[3] for r in whole if r[4] == PEERS)
    print(f"{name}: {statistics.median(took):.3f} s a round (worst {max(took):.3f})")
    print(f"  whole rounds {complete} of {ROUNDS}, largest error of the mean {error:.2g}")
    for _, rank, seconds, error, group, text in sorted(r for r in found if r[0] == ROUNDS):
        print(f"  kill, process {rank}: {seconds:.2f} s, {group} took part, {text or 'no error'}, off by {error:.2g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--hivemind", metavar="PYTHON", help="an interpreter that has hivemind")
    parsed = parser.parse_args()
    tell("torch.distributed (ours)", ours(parsed.elements))
    other = theirs(parsed.hivemind, parsed.elements)
    if other is None:
        print("hivemind: not there; give --hivemind an interpreter that has it")
    else:
        tell("hivemind", other)


if __name__ == "__main__":
    main()
