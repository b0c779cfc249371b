"""Who is at the other end of a connection inside this machine."""

import os
import socket
from types import SimpleNamespace

import pytest

from hetplanner.ui.security import local_user
from hetplanner.ui.security.access import comes_from_another_user
from hetplanner.ui.security.local_user import is_by_another_user, user_at


class Stream:
    def __init__(self, connection: socket.socket | None) -> None:
        self.socket = connection


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def connection(request):
    """Both ends of a connection; the last one comes by an address of IPv4 that is written as one of IPv6."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    bound = "::" if request.param.startswith("::ffff") else request.param
    with (
        socket.create_server((bound, 0), family=family, dualstack_ipv6=bound == "::") as listener,
        socket.create_connection((request.param, listener.getsockname()[1])) as client,
    ):
        server, _ = listener.accept()
        with server:
            yield server, client


def asked(server: socket.socket, host: str = "localhost:5006") -> SimpleNamespace:
    return SimpleNamespace(server_connection=SimpleNamespace(stream=Stream(server)), host=host)


def test_one_s_own_process_is_no_stranger(connection):
    server, _ = connection
    assert user_at(server.getpeername()[:2], server.getsockname()[:2]) == os.getuid()
    assert not is_by_another_user(asked(server))


def test_another_user_is_a_stranger_by_loopback_s_names_and_root_is_none(connection, monkeypatch):
    server, _ = connection
    monkeypatch.setattr(local_user, "user_at", lambda *_: 12345)
    assert comes_from_another_user(asked(server))
    assert not comes_from_another_user(asked(server, "planner.example"))  # a proxy's, which knows its users
    monkeypatch.setattr(local_user, "user_at", lambda *_: 0)
    assert not comes_from_another_user(asked(server))


def test_who_has_hung_up_is_a_stranger(connection):
    server, client = connection
    client.close()
    assert is_by_another_user(asked(server))
    assert is_by_another_user(SimpleNamespace(server_connection=SimpleNamespace(stream=Stream(None))))


def test_a_unix_socket_says_who_connected(monkeypatch):
    server, client = socket.socketpair()
    with server, client:
        assert not is_by_another_user(asked(server))
        monkeypatch.setattr(local_user.os, "getuid", lambda: 12345)
        monkeypatch.setattr(local_user, "ROOT", 12345)
        assert is_by_another_user(SimpleNamespace(server_connection=SimpleNamespace(stream=Stream(server))))


def test_a_request_without_a_connection_is_a_test_s_own():
    assert not is_by_another_user(SimpleNamespace())
