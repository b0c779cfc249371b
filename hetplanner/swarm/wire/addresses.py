"""Addresses of a swarm's processes: HOST:PORT, of other hosts only where calls are encrypted."""

import ipaddress

from hetplanner.errors import InvalidInput

MAX_ADDRESS = 200


def check_address(address: str, credentials: object) -> None:
    """Refuses what is no host:port, and other hosts where nothing is encrypted. Raises InvalidInput.

    Args:
        address: HOST:PORT.
        credentials: of the swarm, or the folder that holds them; None: nothing is encrypted.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535 or len(address) > MAX_ADDRESS:
        raise InvalidInput(f"address: must be HOST:PORT, got {address!r:.80}")
    if credentials is None and not is_loopback(host):
        raise InvalidInput(
            f"address: without certificates only loopback may be used, got {address!r:.80}; make some:"
            " hetplanner peer certificates FOLDER"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
