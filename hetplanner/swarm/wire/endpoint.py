"""One process's end of the network: a gRPC server for what others send, and channels to send to them.

Five methods, all of raw bytes: `Send` (one message, acknowledged), `Work` (answered when the chain has), `Watch`
(never answered: it breaks when the process dies), `State` (a stage's state in pieces) and `Query` (what else is
asked). Without credentials nothing but loopback is listened on or called.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from hetplanner.errors import InvalidInput
from hetplanner.swarm.wire.addresses import MAX_ADDRESS, check_address
from hetplanner.swarm.wire.certificates import SWARM_NAME, Credentials
from hetplanner.swarm.wire.frames import Frame, decode_frame
from hetplanner.swarm.wire.tls_listener import TlsListener

if TYPE_CHECKING:
    from hetplanner.swarm.launch.links import Links, Metadata

SERVICE = "hetplanner.Swarm"
FROM = "from-address"
KEEPALIVE_MS = 1000
PING_TIMEOUT_MS = 1000
END_S = 1.0
"""How long an endpoint that closes waits for the calls that it answers."""
FRAME_SLACK_BYTES = 5 * 2**20
"""What a message may be longer than its tensors: its header."""

Refusal = Callable[[str, str], None]


class Lost(Exception):
    """A call ended without an answer: no process answers (`is_gone`), it took too long (`is_late`), or was refused."""

    def __init__(self, text: str, *, is_gone: bool, is_late: bool) -> None:
        super().__init__(text)
        self.is_gone, self.is_late = is_gone, is_late


class Service(Protocol):
    """What a process does with what comes in. The sender's address is what it says it is."""

    async def on_message(self, sender: str, frame: Frame) -> None:
        """A message has come."""

    async def on_work(self, sender: str, frame: Frame) -> bytes:
        """A call has come: returns the answer's frame."""

    def on_state(self, request: bytes) -> AsyncIterator[bytes]:
        """A caller wants the state of the stage that is served here, in pieces."""

    async def on_query(self, request: bytes) -> bytes:
        """A caller asks by a word: `description` of the run, or the port of the `store` for averaging."""

    def on_garbage(self, sender: str, reason: str) -> None:
        """Something came that is no message of ours; it was refused."""

    def on_stranger(self, host: str, reason: str) -> None:
        """A process on a host was refused: it has no certificate of the swarm. Of endpoints with a TLS listener."""


class Endpoint:
    """A server and channels.

    Args:
        service: takes what comes in.
        credentials: of the swarm; None: plain, on loopback alone.
        max_part_bytes: the largest tensors that a frame may hold; larger ones are refused before they are read.
        links: that are emulated; None: none are.
        proxy: HOST:PORT of an HTTP proxy that all calls go through; empty: there is none.

    Attributes:
        address: where others reach this process, once started.
    """

    def __init__(
        self,
        service: Service,
        credentials: Credentials | None,
        max_part_bytes: int,
        links: Links | None = None,
        proxy: str = "",
    ) -> None:
        self.address = ""
        self._links = links
        self._service, self._credentials = service, credentials
        most = max_part_bytes + FRAME_SLACK_BYTES
        self._options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", most),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
            # Without it a stopped process is never noticed before a call's deadline.
            ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 500),  # that is how long an attempt to connect may take
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.enable_retries", 0),
            ("grpc.so_reuseport", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if proxy:
            self._options.append(("grpc.http_proxy", f"http://{proxy}"))
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._server: grpc.aio.Server | None = None
        self._answering: set[asyncio.Task[Any]] = set()
        self._tls_listener: TlsListener | None = None

    async def start(self, host: str, port: int = 0, *, listener_folder: Path | None = None) -> str:
        """Listens. Returns the address. Raises InvalidInput.

        Args:
            host: by which others reach this process.
            port: 0 takes a free one.
            listener_folder: of the TLS listener's socket; only this user may enter it. With credentials, the listener
                names to the service whom it refuses for want of a certificate.
        """
        check_address(f"{host}:{port}", self._credentials)
        server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            if self._credentials is None:
                bound = server.add_insecure_port(f"{host}:{port}")
            elif listener_folder is not None:
                self._tls_listener = TlsListener(self._credentials, listener_folder, self._service.on_stranger)
                server.add_insecure_port(self._tls_listener.inner)
                bound = await self._tls_listener.open(host, port)
            else:
                mine = self._credentials
                pair = grpc.ssl_server_credentials(((mine.key, mine.certificate),), mine.authority, True)
                bound = server.add_secure_port(f"{host}:{port}", pair)
        except (RuntimeError, OSError) as error:
            raise InvalidInput(f"address: {host}:{port} cannot be listened on: {error}") from None
        await server.start()
        self._server, self.address = server, f"{host}:{bound}"
        return self.address

    async def close(self) -> None:
        """Hangs up."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)
        if self._server is not None:
            await self._server.stop(None)
            await self._end_answers()
        if self._tls_listener is not None:
            await self._tls_listener.close()

    async def _end_answers(self) -> None:
        """Waits for the calls that the stop has cancelled: gRPC prints a traceback for each that outlives the loop."""
        if self._answering:
            await asyncio.wait(self._answering, timeout=END_S)
        await asyncio.sleep(0)  # gRPC's own task, which waits for each, ends a turn of the loop later

    # What others send.

    def _note_answer(self) -> None:
        """The current task answers a call."""
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Send": unary(self._on_send),
                "Work": unary(self._on_work),
                "Watch": unary(self._on_watch),
                "Query": unary(self._on_query),
                "State": grpc.unary_stream_rpc_method_handler(self._on_state),
            },
        )

    async def _on_send(self, data: bytes, context: Any) -> bytes:
        await self._taken(data, context, self._service.on_message)
        return b""

    async def _on_work(self, data: bytes, context: Any) -> bytes:
        return await self._taken(data, context, self._service.on_work)

    async def _taken(self, data: bytes, context: Any, take: Callable[[str, Frame], Awaitable[Any]]) -> Any:
        self._note_answer()
        sender = _sender_of(context)
        try:
            await self._hold(context.invocation_metadata(), len(data))
            answer = await take(sender, decode_frame(data))
            context.set_trailing_metadata(self._stamp())
            return answer
        except InvalidInput as error:
            self._service.on_garbage(sender, str(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def _on_watch(self, data: bytes, context: Any) -> bytes:
        self._note_answer()
        await asyncio.Event().wait()
        return b""

    async def _on_query(self, data: bytes, context: Any) -> bytes:
        self._note_answer()
        try:
            await self._hold(context.invocation_metadata(), len(data))
            answer = await self._service.on_query(data)
            context.set_trailing_metadata(self._stamp())
            return answer
        except InvalidInput as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    async def _on_state(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        self._note_answer()
        try:
            await context.send_initial_metadata(self._stamp())
            async for piece in self._service.on_state(data):
                yield piece
        except InvalidInput as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    # What is sent to others.

    async def send(self, address: str, frame: bytes, timeout_s: float) -> None:
        """One message, acknowledged. Raises Lost."""
        await self._call(address, "Send", frame, timeout_s)

    async def work(self, address: str, frame: bytes, timeout_s: float) -> Frame:
        """A call and its answer. Raises Lost, or InvalidInput if the answer is no frame."""
        return decode_frame(await self._call(address, "Work", frame, timeout_s))

    async def watch(self, address: str) -> None:
        """Returns when the process at an address is gone or cannot be reached."""
        try:
            await self._call(address, "Watch", b"", None)
        except Lost:
            return

    async def query(self, address: str, request: bytes, timeout_s: float) -> bytes:
        """The answer to a word, as soon as a process is there. Raises Lost."""
        return await self._call(address, "Query", request, timeout_s, wait=True)

    async def state(self, address: str, request: bytes, timeout_s: float) -> AsyncIterator[bytes]:
        """The state of a stage in pieces. Raises Lost."""
        method = self._channel(address).unary_stream(f"/{SERVICE}/State")
        try:
            call = method(request, timeout=timeout_s, metadata=((FROM, self.address),))
            sent_by = tuple(await call.initial_metadata() or ())
            async for piece in call:
                await self._hold(sent_by, len(piece))  # all of them were sent at once: one follows the other
                yield piece
        except grpc.aio.AioRpcError as error:
            raise _lost(address, error) from None

    async def _call(
        self, address: str, method: str, data: bytes, timeout_s: float | None, *, wait: bool = False
    ) -> bytes:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        metadata = ((FROM, self.address), *self._stamp())
        call = self._channel(address).unary_unary(f"/{SERVICE}/{method}")(
            data, timeout=timeout_s, metadata=metadata, wait_for_ready=wait
        )
        try:
            answer = await call
            if self._links is not None:
                async with asyncio.timeout(None if until_s is None else until_s - time.monotonic()):
                    await self._hold(await call.trailing_metadata(), len(answer))
        except TimeoutError:
            raise Lost(f"{address}: the answer took too long", is_gone=False, is_late=True) from None
        except grpc.aio.AioRpcError as error:
            raise _lost(address, error) from None
        return bytes(answer)

    def _stamp(self) -> Metadata:
        return () if self._links is None else self._links.stamp()

    async def _hold(self, metadata: Iterable[Any] | None, num_bytes: int) -> None:
        """Waits until what came would have arrived over the emulated link."""
        if self._links is not None:
            await self._links.hold(metadata, num_bytes)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            check_address(address, self._credentials)
            self._channels[address] = self._open(address)
        return self._channels[address]

    def _open(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, self._options)
        mine = self._credentials
        pair = grpc.ssl_channel_credentials(mine.authority, mine.key, mine.certificate)
        return grpc.aio.secure_channel(address, pair, [*self._options, ("grpc.ssl_target_name_override", SWARM_NAME)])

    async def forget(self, address: str) -> None:
        """Closes the channel to an address that is not needed any more."""
        if (channel := self._channels.pop(address, None)) is not None:
            await channel.close(None)


def _sender_of(context: Any) -> str:
    told = dict(context.invocation_metadata() or ()).get(FROM, "")
    return str(told)[:MAX_ADDRESS]


def _lost(address: str, error: grpc.aio.AioRpcError) -> Lost:
    code = error.code()
    detail = (error.details() or "").splitlines()[:1]
    return Lost(
        f"{address}: {code.name.lower()}: {''.join(detail):.300}",
        is_gone=code is grpc.StatusCode.UNAVAILABLE,
        is_late=code is grpc.StatusCode.DEADLINE_EXCEEDED,
    )
