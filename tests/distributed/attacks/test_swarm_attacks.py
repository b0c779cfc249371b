"""What strangers and broken hosts send is refused, named and counted, and the training goes on without them."""

import asyncio
import os

import pytest
import torch

from hetplanner.elastic.protocol.identity import Version
from hetplanner.elastic.protocol.messages import Ask, Hello, Refused, Work, WorkFailed
from hetplanner.swarm.driver import Driver
from hetplanner.swarm.launch.faults import FaultInjector
from hetplanner.swarm.peer.engine import StageEngine
from hetplanner.swarm.peer_process import PeerProcess
from hetplanner.swarm.wire.endpoint import Lost
from hetplanner.swarm.wire.frames import encode_frame, join_frame
from tests.support.processes.own_loop import finish
from tests.support.swarms.swarm_runs import check_end, events_of, losses_of, reference_losses, small_spec, start_swarm

pytestmark = pytest.mark.distributed


class Stranger(Driver):
    """A process that says what it likes and keeps what it is told."""

    takes = (object,)

    def __init__(self) -> None:
        super().__init__(None, 2**20)
        self.told = []

    def handle(self, event):
        self.told.append(event.message)


async def _refusals(address: str, frames: list[bytes]) -> list[str]:
    """What a coordinator or peer answers to things that are no messages."""
    stranger, answers = Stranger(), []
    await stranger.endpoint.start("127.0.0.1")
    for frame in frames:
        with pytest.raises(Lost) as refused:
            await stranger.endpoint.send(address, frame, 5.0)
        answers.append(str(refused.value))
    await stranger.endpoint.close()
    return answers


async def _told(address: str, message) -> list[object]:
    """What somebody is told who sends a message."""
    stranger = Stranger()
    await stranger.endpoint.start("127.0.0.1")
    await stranger.endpoint.send(address, encode_frame(message), 5.0)
    for _ in range(100):
        if stranger.told:
            break
        await asyncio.sleep(0.05)
    await stranger.endpoint.close()
    return stranger.told


async def _work(address: str, work: Work, parts: list[bytes]) -> object:
    stranger = Stranger()
    await stranger.endpoint.start("127.0.0.1")
    try:
        return (await stranger.endpoint.work(address, encode_frame(work, parts), 5.0)).message
    finally:
        await stranger.endpoint.close()


def _wait_for(condition, rehearsal, seconds=20.0):
    async def wait():
        for _ in range(int(seconds / 0.05)):
            if condition():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("did not happen in time")

    finish(wait())


def _address_of(rehearsal, peer: str) -> str:
    text = (rehearsal.run_dir / f"log-of-{peer}.txt").read_text()
    return text.split(f"peer {peer} at ")[1].split(":")[0] + ":" + text.split(f"peer {peer} at ")[1].split(":")[1]


def test_strangers_are_refused_and_the_run_goes_on(tmp_path):
    spec = small_spec(steps=6, stages=2)
    with start_swarm(spec, tmp_path, peers=4, speed=20.0) as rehearsal:
        _wait_for(lambda: (tmp_path / "events.jsonl").exists() and len(events_of(tmp_path, "serving")) == 4, rehearsal)
        garbage = [
            b"",
            os.urandom(1000),
            b"HPSW\x02" + bytes(20),
            join_frame({"message": {"type": "Ping", "member": ["a"], "epoch": None}}, []),
            join_frame({"message": {"type": "os.system"}}, []),
            join_frame({"message": [[[[]]]] * 10}, [b"123"]),
            bytes(12 * 2**20),
        ]
        answers = finish(_refusals(rehearsal.address, garbage))
        assert "version 1, got version 2" in answers[2]
        assert "Invalid value 'os.system'" in answers[4]
        assert "larger than max" in answers[6]
        other = Hello("peer-9", 1, "0 model 0 plan 0", 1.0, None)
        (refused,) = finish(_told(rehearsal.address, other))
        assert isinstance(refused, Refused)
        assert spec.fingerprint in refused.reason
        assert "0 model 0 plan 0" in refused.reason
        (twin,) = finish(_told(rehearsal.address, Hello("peer-0", 1, spec.fingerprint, 1.0, None)))
        assert "in use by a live process" in twin.reason
        peer = _address_of(rehearsal, "peer-0")
        work = Work(1, 0, 0, Version(9, 9), 3, 5.0)
        assert finish(_work(peer, work, [bytes(n) for n in spec.work_bytes(0)])) == WorkFailed(1, "stale")
        for parts in ([], [b"1", b"2"], [bytes(2**19), bytes(4)]):
            with pytest.raises(Lost, match="bytes"):
                finish(_work(peer, work, parts))
        assert len(finish(_refusals(peer, garbage[:4]))) == 4
        finish(_told(rehearsal.address, Ask("idle", 0, frozenset(), None)))
        rehearsal.wait(60)
    check_end(rehearsal, 1e-5)
    assert len(events_of(tmp_path, "garbage")) == 6  # the oversized one was never read
    assert len(events_of(tmp_path, "refused")) >= 2


def no_numbers() -> None:
    """This peer's gradients are no numbers."""
    backward = StageEngine.backward

    def broken(self, key, token, parts):
        self.model.flat_grad.fill_(torch.nan)
        return backward(self, key, token, parts)

    StageEngine.backward = broken


def garbage_answers() -> None:
    """This peer answers calls with something else."""
    answer = PeerProcess._answer
    PeerProcess._answer = lambda self, key, frame: answer(self, key, b"HPSW\x01garbage")


def test_a_peer_without_numbers_leaves_and_one_that_sends_garbage_is_cut_off_for_good(tmp_path):
    spec = small_spec(steps=8, stages=2, ban_s=0.2)
    with start_swarm(spec, tmp_path, peers=4, speed=20.0) as rehearsal:
        rehearsal.start_peer("nan", 20.0, no_numbers)
        rehearsal.start_peer("liar", 20.0, garbage_answers)
        FaultInjector(rehearsal, []).run(90)
    assert losses_of(tmp_path) == pytest.approx(reference_losses(spec), rel=1e-5)
    check_end(rehearsal, 1e-5)
    assert "gradients in a row are no numbers" in (tmp_path / "log-of-nan.txt").read_text()
    assert rehearsal.processes["nan"].exitcode == 0
    accused = events_of(tmp_path, "accused")
    assert {e["peer"] for e in accused} == {"liar"}
    assert len(accused) >= 6
    assert any("peer liar: others got garbage" in e["text"] for e in events_of(tmp_path, "refused"))
