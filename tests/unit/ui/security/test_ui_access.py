"""The launch guard and the Host list."""

from pathlib import Path

import pytest
from bokeh.command.util import build_single_handler_application
from panel.io.session import generate_session

from hetplanner.errors import InvalidInput
from hetplanner.ui.security import access
from hetplanner.ui.security.access import (
    LaunchGuard,
    allowed_hosts,
    host_is_allowed,
    new_token,
    process_guard,
    request_is_ours,
)


def test_tokens_differ_and_can_be_typed():
    tokens = {new_token() for _ in range(200)}
    assert len(tokens) == 200
    assert all(len(t) == 14 and not set(t) & set("0O1IL") for t in tokens)


def test_the_token_unlocks_and_nothing_else_does():
    guard = LaunchGuard("ABCD-EFGH-JKMN")
    assert guard.check("ABCD-EFGH-JKMN")
    assert guard.check(" abcd-efgh-jkmn\n")
    for wrong in ("", "ABCD-EFGH-JKM", "ABCD-EFGH-JKMNX", "é" * 14):
        assert not guard.check(wrong)


def test_nobody_locks_out_who_has_the_right_token():
    guard = LaunchGuard("ABCD-EFGH-JKMN")
    assert not any(guard.check(f"wrong-wrong-{n}") for n in range(1000))
    assert guard.check("ABCD-EFGH-JKMN")


def test_a_short_token_from_the_environment_is_refused():
    with pytest.raises(InvalidInput, match="at least 12"):
        LaunchGuard("1234")


@pytest.mark.parametrize(
    "header", ["localhost", "localhost:5006", "127.0.0.1:80", "127.0.0.1", "[::1]:5006", "[::1]", "LOCALHOST:5006"]
)
def test_loopback_hosts_are_ours(header):
    assert host_is_allowed(header, allowed_hosts({}))


@pytest.mark.parametrize(
    "header",
    [None, "", "evil.example", "evil.example:5006", "localhost.evil.example:5006", "127.0.0.1.evil.example", "::1",
     "localhost:", "localhost:80:80", "evil.example:80@localhost", "127.0.0.1:5006 evil", "x" * 300],
)  # fmt: skip
def test_other_hosts_are_foreign(header):
    assert not host_is_allowed(header, allowed_hosts({}))


def test_hosts_can_be_allowed_by_name():
    allowed = allowed_hosts({"HETPLANNER_ALLOWED_HOSTS": "lab.example, Other.example"})
    assert host_is_allowed("lab.example:5006", allowed)
    assert host_is_allowed("other.example", allowed)
    assert not host_is_allowed("third.example", allowed)


class Request:
    """As a session sees it: what its token tells, and the connection itself."""

    def __init__(self, told: dict[str, str], host: str) -> None:
        self.headers = told
        self.host = host


def test_a_session_is_ours_if_both_its_token_and_its_connection_say_so():
    allowed = allowed_hosts({})
    assert request_is_ours(Request({"host": "localhost:5006"}, "localhost:5006"), allowed)
    assert not request_is_ours(Request({"Host": "localhost:5006"}, "evil.example:5006"), allowed)
    assert not request_is_ours(Request({"Host": "evil.example:5006"}, "localhost:5006"), allowed)
    assert not request_is_ours(Request({}, "localhost:5006"), allowed)


def test_panel_serve_prints_the_token_before_it_serves(capsys, monkeypatch):
    """`--warm` makes a session without a request; it is refused as any foreign one, but the token is there."""
    monkeypatch.setattr(access, "_guard", None)
    monkeypatch.delenv(access.TOKEN_VARIABLE, raising=False)
    generate_session(build_single_handler_application(str(Path(__file__).parents[4] / "apps" / "planner.py")))
    said = capsys.readouterr().out
    assert said.count(f"hetplanner launch token: {process_guard().token}\n") == 1
