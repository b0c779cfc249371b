"""Why a process is not let into a swarm, in words: it asks as TLS does; gRPC only says that no process answers."""

from __future__ import annotations

import asyncio
import ssl

from hetplanner.swarm.wire.certificates import MEMBER_FILE, SWARM_NAME, Credentials, authority_name
from hetplanner.swarm.wire.tls_listener import tls_context

PROBE_S = 5.0
COPY = "copy authority.pem, member.pem and member.key from the folder that the coordinator was started with"
PLAIN_SERVER = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


async def why_refused(address: str, credentials: Credentials | None) -> str | None:
    """Why the coordinator at an address would not let this process in; None: it would, or no process is there."""
    try:
        return await asyncio.wait_for(_why(address, credentials), PROBE_S)
    except (OSError, TimeoutError):
        return None


async def _why(address: str, credentials: Credentials | None) -> str | None:
    if credentials is None:
        is_open = await _speaks_tls(address)
        return f"coordinator {address}: asks for certificates; give --certificates, and {COPY}" if is_open else None
    mine = f"the authority {authority_name(credentials)} of your authority.pem"
    try:
        answer = await _first_bytes(address, tls_context(credentials, server=False))
    except ssl.SSLCertVerificationError as error:
        return f"coordinator {address}: its certificate is not by {mine} ({error.verify_message}); {COPY}"
    except ssl.SSLError as error:
        if error.reason in PLAIN_SERVER:
            return f"coordinator {address}: was started without certificates; leave out --certificates on this machine"
        return f"coordinator {address}: refuses your {MEMBER_FILE} ({error.reason}), which must be by {mine}; {COPY}"
    return None if answer else f"coordinator {address}: hung up at your {MEMBER_FILE}, which must be by {mine}; {COPY}"


async def _first_bytes(address: str, context: ssl.SSLContext) -> bytes:
    """What is said first; in TLS 1.3 a refusal comes only after the handshake, instead of it."""
    reader, writer = await _connect(address, context)
    try:
        return await reader.read(1)
    finally:
        writer.transport.abort()


async def _speaks_tls(address: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent: only whether it is TLS
    try:
        _, writer = await _connect(address, context)
    except ssl.SSLError:
        return False
    writer.transport.abort()
    return True


async def _connect(address: str, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port), ssl=context, server_hostname=SWARM_NAME)
