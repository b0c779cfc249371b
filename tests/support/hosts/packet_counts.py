"""Bytes that an interface of a host sends and receives, by protocol and peer: `packet_counts.py INTERFACE SECONDS`.

Prints "listening", then at its end (after so many seconds, or when its standard input ends) a JSON object of
"PROTOCOL ADDRESS": bytes. It sees what travels on the wire, whatever the programs of the host say.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections import Counter

PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp"}
IPV4 = 0x0800


def count(interface: str, seconds: float) -> Counter[str]:
    """Counts until time is up or nobody writes to standard input any more."""
    found: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)) as wire:
        wire.bind((interface, 3))
        print("listening", flush=True)
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([wire, sys.stdin], [], [], left)
            if sys.stdin in ready:
                break
            packet, (_, kind, way, *_) = wire.recvfrom(65_536)
            if kind == IPV4 and len(packet) >= 20:
                peer = packet[16:20] if way == socket.PACKET_OUTGOING else packet[12:16]
                found[f"{PROTOCOLS.get(packet[9], packet[9])} {socket.inet_ntoa(peer)}"] += len(packet)
    return found


if __name__ == "__main__":
    print(json.dumps(count(sys.argv[1], float(sys.argv[2]))))
