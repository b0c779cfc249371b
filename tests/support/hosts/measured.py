"""What TCP streams between hosts of a test bed carry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.hosts.host_bed import HostBed
from tests.support.hosts.host_tools import program
from tests.support.hosts.shaping import FRAME_BYTES, PAYLOAD_BYTES

FLOW = str(Path(__file__).with_name("tcp_flow.py"))
SECONDS, PORT = 3.0, 5001


def stream_rates(bed: HostBed, senders: Sequence[str], receiver: str, seconds: float = SECONDS) -> dict[str, float]:
    """Bits/s of payload from each sender, one stream each, all at once."""
    address = bed.address(receiver)
    argv = [sys.executable, FLOW, "receive", address, str(PORT), str(len(senders))]
    taker = bed.popen(receiver, argv, stdout=subprocess.PIPE)
    assert taker.stdout is not None
    assert taker.stdout.readline() == "listening\n"
    sending = [bed.popen(s, [sys.executable, FLOW, "send", address, str(PORT), str(seconds)]) for s in senders]
    flows = {flow["from"]: flow for flow in json.loads(taker.communicate()[0])}
    assert [process.wait() for process in sending] == [0] * len(senders)
    return {s: 8 * flows[bed.address(s)]["bytes"] / flows[bed.address(s)]["seconds"] for s in senders}


def iperf_rate(bed: HostBed, sender: str, receiver: str, seconds: float = SECONDS) -> float:
    """Bits/s of payload by iperf3, one stream, its first second left out."""
    iperf3, address = program("iperf3"), bed.address(receiver)
    server = bed.popen(receiver, [iperf3, "-s", "-1", "-B", address, "--forceflush"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert any("Server listening" in line for line in server.stdout)
    done = bed.run(sender, [iperf3, "-c", address, "-t", f"{seconds:.0f}", "-O", "1", "-J"])
    server.communicate()
    result: dict[str, Any] = json.loads(done.stdout)
    assert "error" not in result, result["error"]
    return float(result["end"]["sum_received"]["bits_per_second"])


def of_frames(payload_bits: float) -> float:
    """What tc counts for a rate of payload, in bits/s."""
    return payload_bits * FRAME_BYTES / PAYLOAD_BYTES
