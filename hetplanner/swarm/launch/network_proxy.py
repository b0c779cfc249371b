"""A rehearsal's network as something that can be cut: all calls of its processes pass here, and some pass no longer.

Every process has a loopback address of its own (Linux has 127.0.0.0/8) and a port here through which it calls the
others: an HTTP proxy, told by its CONNECT whom it is to reach. Over a cut link bytes neither go nor come, nor does the
end of a connection: each side sees what it would see if a cable were pulled, and must find out by itself.
Averaging does not pass here: gloo knows no proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

from hetplanner.errors import InvalidInput

COORDINATOR_HOST = "127.0.0.1"
MOST_HOSTS = 250
"""Addresses 127.0.1.1 and further."""
MOST_BYTES = 2**16
START_S = 10.0


class NetworkProxy:
    """Connections between named processes, on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network_proxy", daemon=True)
        self._thread.start()
        self._name_at: dict[str, str] = {}
        self._ports: dict[str, int] = {}
        self._open: dict[frozenset[str], asyncio.Event] = {}  # by the two ends of a link

    def admit(self, name: str) -> tuple[str, str]:
        """The host that a process is to listen on, and HOST:PORT of the proxy that it is to call through.

        Raises:
            InvalidInput: there are too many.
        """
        if name not in self._ports:
            if len(self._ports) >= MOST_HOSTS:
                raise InvalidInput(f"rehearsal: links can be cut between at most {MOST_HOSTS} processes")
            self._ports[name] = self._do(self._listen(name))
            host = COORDINATOR_HOST if name == "coordinator" else f"127.0.1.{len(self._ports)}"
            self._name_at[host] = name
        host = next(host for host, known in self._name_at.items() if known == name)
        return host, f"127.0.0.1:{self._ports[name]}"

    def cut(self, one: str, two: str) -> None:
        """Nothing passes between two processes any more, until the link is restored."""
        self._do(self._set(one, two, is_open=False))

    def restore(self, one: str, two: str) -> None:
        """What was held between the two goes on."""
        self._do(self._set(one, two, is_open=True))

    def close(self) -> None:
        """Ends all connections."""
        if self._thread.is_alive():
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_S)
            self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _listen(self, name: str) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Cancelled when all ends; asyncio would report that as an error of this function.
            with contextlib.suppress(
                OSError, ValueError, IndexError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                await self._connect(name, reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def _gate(self, one: str, two: str) -> asyncio.Event:
        ends = frozenset((one, two))
        if ends not in self._open:
            self._open[ends] = asyncio.Event()
            self._open[ends].set()
        return self._open[ends]

    async def _set(self, one: str, two: str, *, is_open: bool) -> None:
        gate = self._gate(one, two)
        if is_open:
            gate.set()
        else:
            gate.clear()

    async def _connect(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection to its end."""
        request = (await reader.readuntil(b"\r\n\r\n")).split()
        host, _, port = request[1].decode().rpartition(":")
        gate = self._gate(name, self._name_at.get(host, host))
        await gate.wait()
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            await asyncio.gather(_carry(reader, there_writer, gate), _carry(there_reader, writer, gate))
        finally:
            there_writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    """One direction of a connection, its end included."""
    try:
        while data := await reader.read(MOST_BYTES):
            await gate.wait()
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side is gone, as the other is told by its connection's end
    await gate.wait()
    writer.close()
