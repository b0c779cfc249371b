"""Transfers of known sizes between two peers over an emulated link, against the cost model's latency and bandwidth.

python tests/benchmarks/swarms/bench_swarm_transfers.py
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.swarm.launch.links import Links, create_links
from hetplanner.swarm.wire.endpoint import Endpoint
from tests.support.plans.factories import small_cluster
from tests.support.processes.own_loop import finish

PIECES = 10


class Giver:
    """Answers with as many bytes as it is asked for, at once or in pieces."""

    async def on_query(self, request):
        return bytes(int(request))

    async def on_state(self, request):
        for _ in range(PIECES):
            yield bytes(int(request) // PIECES)


async def measure(mbit_per_s: float, latency_s: float) -> None:
    """Prints seconds of answers (there and back) and downloads (one way) beside what they should take."""
    cluster = small_cluster(2, bandwidth=f"{mbit_per_s:g} Mbit/s", latency=f"{1e3 * latency_s:g} ms")
    folder = Path(tempfile.mkdtemp())
    create_links(cluster, folder)
    one, two = (Endpoint(Giver(), None, 2**23, Links(folder, device)) for device in cluster.device_ids)
    await one.start("127.0.0.1")
    await two.start("127.0.0.1")
    await one.query(two.address, b"1", 30.0)  # connects
    for size in (10_000, 100_000, 1_000_000, 4_000_000):
        request, wire_s = str(size).encode(), size / (mbit_per_s * 1e6 / 8)
        began_s = time.monotonic()
        await one.query(two.address, request, 60.0)
        answered_s = time.monotonic() - began_s
        began_s = time.monotonic()
        async for _ in one.state(two.address, request, 60.0):
            pass
        downloaded_s = time.monotonic() - began_s
        off = answered_s / (2 * latency_s + wire_s) - 1, downloaded_s / (latency_s + wire_s) - 1
        print(
            f"{mbit_per_s:g} Mbit/s, {1e3 * latency_s:g} ms, {size} bytes: answered in {answered_s:.4f} s"
            f" ({off[0]:+.1%}), downloaded in {downloaded_s:.4f} s ({off[1]:+.1%})"
        )
    await one.close()
    await two.close()


if __name__ == "__main__":
    for link in ((10.0, 0.02), (100.0, 0.05)):
        finish(measure(*link))
