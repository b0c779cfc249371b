"""TLS in front of a gRPC server: accepted connections are passed on as they are, refused ones named with the reason.

gRPC refuses a handshake before Python hears of it, so Python cannot count it. Every process first connects to the
coordinator. So the coordinator takes its connections here, and its gRPC server listens on a socket in the run's folder,
which only its user may enter. Peers, who carry tensors, leave TLS to gRPC.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.swarm.wire.certificates import Credentials

HANDSHAKE_S = 5.0
PIECE_BYTES = 2**16
SOCKET_FILE = "coordinator.socket"
REASONS = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is by another authority",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it trusts another authority",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it trusts another authority",
    "TLSV1_ALERT_DECRYPT_ERROR": "it trusts another authority of the same name",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS",
}
"""What OpenSSL calls it -> what it means to a swarm."""

HUNG_UP = "it hung up at our certificate: it trusts another authority, or was too slow"
"""One that does so once may be a peer on a busy host."""

Refused = Callable[[str, str], None]


def tls_context(credentials: Credentials, *, server: bool) -> ssl.SSLContext:
    """A context in which both sides must show a certificate of the swarm's authority. Raises InvalidInput."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata=credentials.authority.decode("ascii"))
        with tempfile.NamedTemporaryFile() as file:  # ssl takes keys from files alone; this one is its user's
            file.write(credentials.certificate + b"\n" + credentials.key)
            file.flush()
            context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidInput(f"certificates: cannot be used: {error}; make them again") from None
    return context


def reason_of(error: Exception) -> str:
    """Why a handshake failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{REASONS['CERTIFICATE_VERIFY_FAILED']} or not valid ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return REASONS.get(error.reason or "", f"TLS: {error.reason or error}"[:200])
    return HUNG_UP


class TlsListener:
    """The listening side.

    Args:
        credentials: of the swarm.
        folder: only this user may enter it.
        refused: told of the host and the reason, for every handshake that fails.

    Attributes:
        inner: address for the gRPC server behind.
    """

    def __init__(self, credentials: Credentials, folder: Path, refused: Refused) -> None:
        self._context = tls_context(credentials, server=True)
        self._refused = refused
        self._socket = folder / SOCKET_FILE
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # A socket's address has 107 bytes at most; the folder's own path may be longer.
        self._short = f"/proc/self/fd/{self._folder}/{SOCKET_FILE}" if sys.platform == "linux" else str(self._socket)
        self.inner = f"unix:{self._short}"
        self._server: asyncio.Server | None = None
        self._inside: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> int:
        """Listens. Returns the port. Raises OSError."""
        self._server = await asyncio.start_server(self._enter, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Closes all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._inside):
            task.cancel()
        await asyncio.gather(*self._inside, return_exceptions=True)
        self._socket.unlink(missing_ok=True)
        os.close(self._folder)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._inside.add(task)
        try:
            if await self._shake_hands(writer):
                await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):  # hung up, on either side; a task of a server has no caller
            return
        finally:
            self._inside.discard(task)
            writer.transport.abort()

    async def _shake_hands(self, writer: asyncio.StreamWriter) -> bool:
        host = str((writer.get_extra_info("peername") or ("unknown",))[0])
        try:
            await writer.start_tls(self._context, ssl_handshake_timeout=HANDSHAKE_S)
        except OSError as error:
            self._refused(host, reason_of(error))
            return False
        return True

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._short)
        ways = [asyncio.create_task(_pump(reader, inner_writer)), asyncio.create_task(_pump(inner_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            inner_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
