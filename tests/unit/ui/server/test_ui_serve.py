"""Where the dashboard listens, what it goes by, and what it prints."""

import socket

import pytest

from hetplanner.errors import InvalidInput, RunError
from hetplanner.ui import serve
from hetplanner.ui.security.access import HOSTS_VARIABLE, TOKEN_VARIABLE, host_is_allowed, launch_token


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_loopback_is_told_apart(host):
    assert serve.is_loopback(host)
    assert not serve.is_loopback("0.0.0.0")
    assert not serve.is_loopback("localhost.evil.example")


def test_a_server_for_all_goes_by_its_own_addresses_only(monkeypatch):
    monkeypatch.setenv(HOSTS_VARIABLE, "lab.example")
    hosts = serve.own_hosts("0.0.0.0")
    assert {"localhost", "lab.example", socket.gethostname().lower()} <= hosts
    assert not host_is_allowed("evil.example:5006", hosts)
    assert not host_is_allowed("0.0.0.0:5006", hosts)
    assert not host_is_allowed("8.8.8.8:5006", hosts)
    assert serve.own_hosts("10.1.2.3") == hosts - hosts | {"localhost", "127.0.0.1", "[::1]", "lab.example", "10.1.2.3"}


def test_what_is_printed_holds_the_link_and_for_other_machines_a_warning():
    said = serve._announcement("http://localhost:1/planner?token=x", "ABCD")
    assert "http://localhost:1/planner?token=x" in said
    assert "ABCD" in said
    assert "launch token" not in serve._announcement("link", None)
    warning = serve._warning("0.0.0.0", 5006)
    assert "not encrypted" in warning
    assert "ssh -L 5006:localhost:5006" in warning


def test_a_socket_in_a_folder_that_others_may_enter_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidInput, match="others may enter it"):
        serve.serve_behind_login(tmp_path / "socket")


def test_a_port_that_is_taken_and_a_host_that_is_not_ours_are_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RunError, match="give another with --port"):
            serve._free_port("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(InvalidInput, match="--host: 'no such host' is no address"):
        serve._free_port("no such host", 0)
    assert serve._free_port("127.0.0.1", 0) > 0


def test_the_token_leaves_the_environment_that_children_inherit(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "ABCD-EFGH")
    assert launch_token() == ("ABCD-EFGH", True)
    token, is_given = launch_token()
    assert (len(token), is_given) == (14, False)
