"""One TCP stream, measured where it ends: `tcp_flow.py receive ADDRESS PORT FLOWS` and `send ADDRESS PORT SECONDS`.

The receiver prints a JSON list, one entry a flow in the order of their beginning: who sent, and bytes and seconds
between the first and the last arrival after `SKIP_S`. What arrived is the kernel's count (`tcpi_bytes_received`), so
that a receiver who waits for a core still knows it.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from threading import Thread
from typing import Any

SKIP_S = 0.5
"""A flow's beginning, in which TCP still grows its window."""
PIECE = bytes(1 << 18)
RECEIVED_AT = 128
"""Where Linux's struct tcp_info keeps tcpi_bytes_received, 64 bits wide."""


def receive(address: str, port: int, flows: int) -> list[dict[str, Any]]:
    """Takes so many flows, all at once."""
    found: list[dict[str, Any]] = []
    with socket.create_server((address, port), backlog=flows) as server:
        print("listening", flush=True)
        threads = [Thread(target=_take, args=(*server.accept(), found)) for _ in range(flows)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def _take(flow: socket.socket, peer: tuple[str, int], found: list[dict[str, Any]]) -> None:
    entry: dict[str, Any] = {"from": peer[0]}
    found.append(entry)
    begin = first = last = None
    buffer = bytearray(1 << 20)
    while flow.recv_into(buffer):
        last = time.monotonic(), _received(flow)
        begin = begin or last
        if first is None and last[0] - begin[0] > SKIP_S:
            first = last
    assert first is not None, f"the flow of {peer[0]} took no {SKIP_S} s"
    assert last is not None
    entry |= {"bytes": last[1] - first[1], "seconds": last[0] - first[0]}
    flow.close()


def _received(flow: socket.socket) -> int:
    return struct.unpack_from("Q", flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), RECEIVED_AT)[0]


def send(address: str, port: int, seconds: float) -> None:
    """Sends as much as goes in so many seconds."""
    end = time.monotonic() + seconds
    with socket.create_connection((address, port)) as flow:
        while time.monotonic() < end:
            flow.sendall(PIECE)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        print(json.dumps(receive(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    else:
        send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
