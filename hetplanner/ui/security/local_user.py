"""Whose process is at the other end of a connection inside this machine; loopback is reached by all its users.

Linux tells of each TCP socket which user owns it, and of a Unix socket which user connected. Elsewhere the user is
unknown, and no connection is refused for it.
"""

import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED, NO_INODE = "01", "0"
TRIES = 3
"""A table that changes while it is read may lack a line."""
ROOT = 0
_CREDENTIALS = struct.Struct("iII")  # process, user, group

_strangers: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # by connection: Tornado's streams


def is_by_another_user(request: Any) -> bool:
    """Whether a Tornado request comes from a process of another user than this one's and root, inside this machine.

    One whose connection is closed already counts as such; one that has none (in tests) does not.
    """
    stream = getattr(getattr(request, "server_connection", None), "stream", None)
    if stream is None or sys.platform != "linux":
        return False
    if stream not in _strangers:
        _strangers[stream] = stream.socket is None or _is_strange(stream.socket)
    return _strangers[stream]


def _is_strange(here: socket.socket) -> bool:
    if here.family == socket.AF_UNIX:
        told = here.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return _CREDENTIALS.unpack(told)[1] not in (os.getuid(), ROOT)
    try:
        peer, mine = here.getpeername()[:2], here.getsockname()[:2]
    except OSError:
        return True
    if not _address(peer[0]).is_loopback:
        return False  # of another machine; what such may do is decided elsewhere
    for _ in range(TRIES):
        owner = user_at(peer, mine)
        if owner is not None:
            return owner not in (os.getuid(), ROOT)
    return True


def user_at(end: tuple[str, int], other: tuple[str, int]) -> int | None:
    """The user who owns the socket at one end of a connection inside this machine; None: there is no such socket."""
    wanted = (_ends(*end), _ends(*other))
    for table in TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, here, there, state, _, _, _, user, _, inode, *_ = line.split()
            # A socket without an inode was closed by its process; it has no owner, and is shown as root's.
            if state == ESTABLISHED and inode != NO_INODE and (_parsed(here), _parsed(there)) == wanted:
                return int(user)
    return None


def _ends(host: str, port: int) -> tuple[Any, int]:
    return _address(host), port


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(host.partition("%")[0])
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _parsed(text: str) -> tuple[Any, int]:
    """An address of a table: words of four bytes in the machine's own order, and the port, in hexadecimal."""
    host, _, port = text.partition(":")
    data = b"".join(int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8))
    return _address(str(ipaddress.ip_address(data))), int(port, 16)
