"""Rounds of hivemind's averager among three processes, for bench_averaging.py: run by a Python that has hivemind.

Writes JSON to a file: seconds and largest error of each whole round, and what the round gave in which one was killed.
"""

import json
import multiprocessing as mp
import os
import sys
import time
from pathlib import Path

ROUNDS, PEERS = 8, 3


def mean_of(rank_seeds, size):
    """What a round should give: the mean of everybody's numbers."""
    import torch

    total = torch.zeros(size, dtype=torch.float64)
    for seed in rank_seeds:
        total += torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()
    return total / len(rank_seeds)


def end(results, code):
    """Ends this process at once, when what it told has been passed on."""
    results.close()
    results.join_thread()
    os._exit(code)


def work(rank, size, first, results, barrier):
    """One process: whole rounds, then one in which the last process is killed after it has begun."""
    import hivemind
    import torch

    torch.set_num_threads(1)
    known = first.get() if rank else []
    dht = hivemind.DHT(initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    if rank == 0:
        for _ in range(PEERS - 1):
            first.put([str(address) for address in dht.get_visible_maddrs()])
    averager = hivemind.averaging.DecentralizedAverager(
        [torch.zeros(size)],
        dht,
        prefix="stage",
        target_group_size=PEERS,
        min_matchmaking_time=1.0,
        request_timeout=0.5,
        allreduce_timeout=10.0,
        start=True,
    )
    for number in range(ROUNDS + 1):
        with averager.get_tensors() as tensors:
            tensors[0][...] = torch.randn(size, generator=torch.Generator().manual_seed(PEERS * number + rank))
        barrier.wait()
        is_killed = number == ROUNDS and rank == PEERS - 1
        began_s = time.monotonic()
        if is_killed:
            averager.step(wait=False, timeout=20.0)
            time.sleep(0.06)  # half a round on loopback: it is in the group then
            end(results, 9)
        try:
            group = averager.step(timeout=20.0, allow_retries=False)
        except Exception as error:
            group, text = None, type(error).__name__
        else:
            text = ""
        took_s = time.monotonic() - began_s
        with averager.get_tensors() as tensors:
            wanted = mean_of([PEERS * number + r for r in range(PEERS)], size)
            error = float((tensors[0].double() - wanted).abs().max())
        results.put((number, rank, took_s, error, len(group) if group else 0, text))
    time.sleep(0.5)
    end(results, 0)


def main():
    size = int(sys.argv[1])
    context = mp.get_context("fork")  # hivemind starts processes of its own in the same way, and cannot pickle them
    first, results, barrier = context.Queue(), context.Queue(), context.Barrier(PEERS)
    processes = [context.Process(target=work, args=(r, size, first, results, barrier)) for r in range(PEERS)]
    for process in processes:
        process.start()
    found = [results.get(timeout=180) for _ in range(ROUNDS * PEERS + PEERS - 1)]
    for process in processes:
        process.join(10)
        process.kill()
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
