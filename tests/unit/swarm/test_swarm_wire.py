"""Frames, messages and certificates: round trips, and what is refused."""

import asyncio
import json
import re
import struct
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplanner.elastic.protocol import messages
from hetplanner.elastic.protocol.encoding import decode_message, encode_message
from hetplanner.elastic.protocol.identity import Entry, Holding, Member, Replica, Stamp, Token, Version, View
from hetplanner.errors import InvalidInput
from hetplanner.swarm.coordinator_process import CoordinatorProcess
from hetplanner.swarm.driver import Driver
from hetplanner.swarm.wire.addresses import check_address
from hetplanner.swarm.wire.certificates import (
    Credentials,
    authority_name,
    load_credentials,
    make_certificates,
    run_certificates,
)
from hetplanner.swarm.wire.endpoint import Lost
from hetplanner.swarm.wire.frames import MAX_HEADER_BYTES, decode_frame, encode_frame, join_frame
from hetplanner.swarm.wire.refusal import why_refused
from hetplanner.swarm.wire.tls_listener import HUNG_UP
from tests.support.processes.own_loop import finish

MEMBER = Member("peer-1", Stamp(2, 7))
REPLICA = Replica(MEMBER, "127.0.0.1:5000", False)
TOKEN = Token(3, 1, 2**62)
MESSAGES = [
    messages.Hello("a", 2**62, "1.0 model x", 2.5, Holding(1, Version(0, 4), Stamp(1, 2))),
    messages.Hello("a", 1, "x", 1.0, None),
    messages.Ping(MEMBER, None),
    messages.AssignStage(MEMBER, 1, Version(0, 3), messages.FromPeer(REPLICA)),
    messages.AssignStage(MEMBER, 1, Version(0, 3), messages.FromCheckpoint(Version(0, 2))),
    messages.AssignStage(MEMBER, 1, Version(0, 3), messages.AlreadyHeld()),
    messages.Prepare(MEMBER, Stamp(1, 9), Version(0, 3), (TOKEN, TOKEN)),
    messages.Reduce(MEMBER, Stamp(1, 9), (REPLICA,)),
    messages.Reduced(MEMBER, Stamp(1, 9), 8, 12.5),
    messages.Reduced(MEMBER, Stamp(1, 9), 8, 12.5, 0.25),
    messages.Reduced(MEMBER, Stamp(1, 9), 3, None, None, 17),
    messages.Decide(Stamp(1, 9), True, Version(0, 4)),
    messages.Decide(Stamp(1, 9), True, Version(0, 4), 1.5),
    View(Stamp(1, 2), ((REPLICA,), (), (REPLICA, REPLICA))),
    messages.Ask("t", 4, frozenset({Stamp(1, 1), Stamp(1, 2)}), Stamp(1, 1)),
    messages.Done("t", Stamp(1, 1), (Entry(MEMBER, TOKEN),)),
    messages.Grant(Stamp(1, 1), 3, Version(0, 3), 7),
    messages.Work(2**48, 1, 3, Version(0, 3), 7, 20.5),
    messages.Worked(1, (Entry(MEMBER, TOKEN),), 0.5),
    messages.WorkFailed(1, "stale"),
    messages.Ended("done"),
    messages.Sent(2**40, 0),
    messages.ReportGarbage("127.0.0.1:1", "sent garbage"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_comes_back_equal_with_its_parts(message):
    frame = decode_frame(encode_frame(message, [b"abc", b"", bytes(1000)]))
    assert frame.message == message
    assert type(frame.message) is type(message)
    assert [bytes(part) for part in frame.parts] == [b"abc", b"", bytes(1000)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_field_of_another_type_is_refused_or_was_equal(message, data):
    plain = json.loads(json.dumps(encode_message(message)))
    name = data.draw(st.sampled_from(sorted(plain)))
    value = plain[name] = data.draw(json_values)
    try:
        decoded = decode_message(plain)
    except InvalidInput:
        return
    again = json.loads(json.dumps(encode_message(decoded)))
    assert again[name] == value or set(map(str, again[name])) == set(map(str, value))


@given(st.binary(max_size=200))
def test_random_bytes_are_no_frame(data):
    with pytest.raises(InvalidInput):
        decode_frame(data)


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_frame_with_a_changed_byte_never_crashes(position, value):
    data = bytearray(encode_frame(MESSAGES[0], [b"tensor"]))
    data[position % len(data)] = value
    with suppress(InvalidInput):
        decode_frame(bytes(data))


def infinitely_fast() -> bytes:
    """A peer whose speed is a number that JSON may hold and a float may not."""
    data = encode_frame(messages.Hello("a", 1, "x", 12345.5, None))
    assert b"12345.5" in data
    return data.replace(b"12345.5", b"1.0e999")


@pytest.mark.parametrize(
    ("data", "law"),
    [
        (b"HPSW\x07" + bytes(9), "version 1, got version 7"),
        (b"HPSW\x01" + struct.pack("<I", 2**31) + b"{}", "inside"),
        (b"HPSW\x01" + struct.pack("<I", MAX_HEADER_BYTES + 1) + bytes(MAX_HEADER_BYTES + 1), "at most"),
        (join_frame({"message": {}}, [b"12"]) + b"3", "2 bytes are announced, 3 came"),
        (join_frame({"message": {}}, [b""] * 9), "at most 8 lengths"),
        (join_frame({"message": {"type": "Work"}}, []), "missing required field `call`"),
        (join_frame({"message": "[" * 500}, []), "Expected `object`, got `str`"),
        (
            join_frame(
                {"message": {"type": "Ping", "member": ["a", [1, True]], "epoch": None, "queue": 0, "speed": None}},
                [],
            ),
            r"Expected `int`, got `bool` - at `\$.member\[1\]\[1\]`",
        ),
        (join_frame({"message": {"type": "Ended", "reason": "x" * 3000}}, []), "length <= 2000"),
        (infinitely_fast(), r"float` <= .* `\$.speed`"),
        (join_frame({"message": {}, "more": 1}, []), "a message alone"),
    ],
)
def test_what_is_wrong_is_said(data, law):
    with pytest.raises(InvalidInput, match=law):
        decode_frame(data)


def test_certificates_are_made_once_and_keys_are_private(tmp_path):
    files = make_certificates(tmp_path / "certificates")
    assert {f.name: f.stat().st_mode & 0o777 for f in files} == {
        "authority.pem": 0o644,
        "authority.key": 0o600,
        "member.pem": 0o644,
        "member.key": 0o600,
    }
    assert load_credentials(tmp_path / "certificates").key.startswith(b"-----BEGIN PRIVATE KEY")
    with pytest.raises(InvalidInput, match="holds an authority already"):
        make_certificates(tmp_path / "certificates")


def test_a_local_run_gets_certificates_of_its_own_once_and_nothing_can_sign_more(tmp_path):
    folder = run_certificates(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {f.name for f in folder.iterdir()} == {"authority.pem", "member.pem", "member.key"}
    mine = load_credentials(folder)
    assert run_certificates(tmp_path) == folder
    assert load_credentials(folder) == mine  # a coordinator that starts again knows its peers


class Answering(Driver):
    """A process that answers, or asks."""

    def __init__(self, credentials):
        super().__init__(credentials, 2**20)
        self.reasons = []

    async def on_query(self, request):
        return b"yes, " + request

    def on_stranger(self, host, reason):
        super().on_stranger(host, reason)
        self.reasons.append(reason)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """Credentials of two swarms, and a mixture: trusting the first with a certificate by the second."""
    folder = tmp_path_factory.mktemp("authorities")
    for name in ("own", "other"):
        make_certificates(folder / name)
    own, other = (load_credentials(folder / name) for name in ("own", "other"))
    return {"own": own, "other": other, "mixed": Credentials(own.authority, other.certificate, other.key), "none": None}


STRANGERS = [
    ("other", "trusts another authority", "its certificate is not by the authority .* of your authority.pem"),
    (
        "mixed",
        "its certificate is by another authority",
        "your member.pem.*, which must be by the authority",
    ),
    ("none", "it does not speak TLS", "asks for certificates; give --certificates"),
]


class Reporting(CoordinatorProcess):
    """A coordinator's events about strangers."""

    def __init__(self):
        self.strangers, self._reports, self.reported, self.event_log = Counter(), Counter(), [], self

    def event(self, kind, *, peer, text):
        self.reported.append((kind, peer, text.removeprefix("no certificate of this swarm: ")))


def test_a_stranger_is_reported_at_its_first_and_tenth_refusal_whatever_the_reasons():
    one = Reporting()
    for reason in (HUNG_UP, *["no TLS"] * 9, HUNG_UP, HUNG_UP, "no TLS"):  # the first may be a peer on a busy host
        one.on_stranger("a", reason)
    for _ in range(3):
        one.on_stranger("b", HUNG_UP)
    assert one.reported == [
        ("refused", "a", "no TLS, 2 times so far"),
        ("refused", "a", "no TLS, 10 times so far"),
        ("refused", "b", f"{HUNG_UP}, 3 times so far"),
    ]


@pytest.mark.parametrize(("who", "named", "told"), STRANGERS)
def test_a_wrong_certificate_is_refused_named_and_counted_and_its_bearer_is_told_why(
    authorities, tmp_path, who, named, told
):
    async def story():
        inside, asker = Answering(authorities["own"]), Answering(authorities[who])
        address = await inside.endpoint.start("127.0.0.1", listener_folder=tmp_path)
        with pytest.raises(Lost):
            await asker.endpoint.query(address, b"hello", 2.0)
        await asker.endpoint.close()
        reason = await why_refused(address, authorities[who])
        friend = Answering(authorities["own"])
        answer = await friend.endpoint.query(address, b"x" * 300_000, 20.0)
        none = await why_refused(address, authorities["own"])
        await friend.endpoint.close()
        await inside.endpoint.close()
        return inside, reason, answer, none

    inside, reason, answer, none = finish(story())
    assert inside.strangers["127.0.0.1"] == len(inside.reasons) > 0
    assert named in " ".join(inside.reasons)
    assert re.search(told, reason)
    assert "copy authority.pem, member.pem and member.key" in reason
    if who == "other":
        assert authority_name(authorities["other"]) in reason
    assert (answer, none) == (b"yes, " + b"x" * 300_000, None)


def test_who_comes_with_certificates_to_a_coordinator_without_is_told_so(authorities):
    async def story():
        plain = Answering(None)
        address = await plain.endpoint.start("127.0.0.1")
        found = [await why_refused(address, authorities["own"]), await why_refused(address, None)]
        await plain.endpoint.close()
        return [*found, await why_refused(address, authorities["own"])]

    refusal, fine, nobody = finish(story())
    assert "was started without certificates" in refusal
    assert (fine, nobody) == (None, None)


def test_a_door_closes_behind_whoever_hangs_up_and_leaves_nothing(authorities, tmp_path):
    folder = tmp_path / ("a path longer than the address of a socket may be" * 4)
    folder.mkdir()

    async def story():
        inside = Answering(authorities["own"])
        address = await inside.endpoint.start("127.0.0.1", listener_folder=folder)
        assert [path.is_socket() for path in folder.iterdir()] == [True]
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(5000), b"\x16\x03\x01\xff\xff" + bytes(100)):
            _, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
            writer.write(data)
            await writer.drain()
            writer.close()
        friend = Answering(authorities["own"])
        for _ in range(3):
            assert await friend.endpoint.query(address, b"1", 20.0) == b"yes, 1"
        await friend.endpoint.close()
        for _ in range(200):
            if len(set(inside.reasons)) == 3:
                break
            await asyncio.sleep(0.05)
        await inside.endpoint.close()
        return inside.reasons, list(folder.iterdir())

    reasons, left = finish(story())
    assert {HUNG_UP, "it does not speak TLS"} < set(reasons)
    assert len(reasons) >= 4
    assert left == []


def test_an_endpoint_that_closes_ends_the_calls_it_answers_and_says_nothing(capfd):
    """gRPC printed `CancelledError` for each open call when a peer ended."""

    async def story():
        one, other = Driver(None, 1000), Driver(None, 1000)
        address = await one.endpoint.start("127.0.0.1")
        watches = [asyncio.ensure_future(other.endpoint.watch(address)) for _ in range(3)]
        while len(one.endpoint._answering) < 3:
            await asyncio.sleep(0.01)
        await one.endpoint.close()
        open_still = len(one.endpoint._answering)
        for watch in watches:
            watch.cancel()
        return open_still

    assert [finish(story()) for _ in range(3)] == [0, 0, 0]
    assert "CancelledError" not in capfd.readouterr().err


@pytest.mark.parametrize("address", ["10.0.0.1:5", "example.org:5", "0.0.0.0:1", "127.0.0.1", "127.0.0.1:99999", ":1"])
def test_without_certificates_only_loopback_is_called(address):
    with pytest.raises(InvalidInput, match="address"):
        check_address(address, None)


@pytest.mark.parametrize("address", ["127.0.0.1:5", "localhost:5", "[::1]:5"])
def test_loopback_needs_none(address):
    check_address(address, None)
