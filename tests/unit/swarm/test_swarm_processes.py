"""What lies between a peer's machine and its threads: calls in line, turns of work, names in files."""

import asyncio
import threading

import pytest

from hetplanner.elastic.protocol.identity import Version
from hetplanner.elastic.protocol.messages import Work
from hetplanner.errors import InvalidInput
from hetplanner.swarm.launch.faults import draw_faults
from hetplanner.swarm.launch.rehearsal import Rehearsal
from hetplanner.swarm.main import parse_arguments
from hetplanner.swarm.peer.open_calls import OpenCalls
from hetplanner.swarm.peer.work_thread import Turn, WorkThread
from tests.support.processes.own_loop import finish
from tests.support.swarms.swarm_runs import small_spec


def work(call):
    return Work(call, 0, 0, Version(0, 0), 1, 5.0)


def test_calls_are_computed_in_order_as_there_is_room():
    async def story():
        calls = OpenCalls()
        keys = [("a:1", number) for number in range(4)]
        waiting = [calls.begin(key, work(key[1]), ()) for key in keys]
        for key in keys:
            calls.line_up(key)
        assert calls.admitted(2) == keys[:2]
        assert calls.admitted(2) == []
        calls.leave(keys[2], waiting[2])  # its caller waits no longer, so it is passed over
        calls.answer(keys[0], b"done")
        assert await waiting[0] == b"done"
        assert calls.admitted(2) == [keys[3]]
        with pytest.raises(InvalidInput, match="under way already"):
            calls.begin(keys[1], work(1), ())
        held = calls.get(keys[1])
        calls.drop_all()
        assert not calls.holds(keys[1], held)
        assert len(calls) == 0

    finish(story())


def test_what_others_wait_for_goes_first_and_errors_come_back():
    async def story():
        thread, order, gate = WorkThread("test"), [], threading.Event()
        first = asyncio.ensure_future(thread.do(Turn.FORWARD, gate.wait))
        await asyncio.sleep(0.05)
        turns = [Turn.FORWARD, Turn.BACKWARD, Turn.CONTROL, Turn.FORWARD]
        rest = [
            asyncio.ensure_future(thread.do(turn, lambda turn=turn, n=n: order.append((turn, n))))
            for n, turn in enumerate(turns)
        ]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *rest)
        assert order == [(Turn.CONTROL, 2), (Turn.BACKWARD, 1), (Turn.FORWARD, 0), (Turn.FORWARD, 3)]
        with pytest.raises(ZeroDivisionError):
            await thread.do(Turn.CONTROL, lambda: 1 // 0)

    finish(story())


def test_a_storm_is_drawn_from_its_seed():
    storm = draw_faults(3, steps=60, kills=20, stops=10, joins=20, speeds=(1.0, 2.0))
    assert storm == draw_faults(3, steps=60, kills=20, stops=10, joins=20, speeds=(1.0, 2.0))
    assert storm != draw_faults(4, steps=60, kills=20, stops=10, joins=20, speeds=(1.0, 2.0))
    assert [sum(f.kind == kind for f in storm) for kind in ("kill", "stop", "join")] == [20, 10, 20]
    assert all(1 <= fault.step <= 58 for fault in storm)
    assert len({f.peer for f in storm if f.kind == "join"}) == 20


def fake_rehearsal(tmp_path, monkeypatch):
    """A rehearsal that starts no process, and the arguments of those that it would."""
    started = []
    rehearsal = Rehearsal(small_spec(), tmp_path / "run")
    monkeypatch.setattr(
        rehearsal._context,
        "Process",
        lambda target, args, name: started.append(args[0]) or FakeProcess(),
        raising=False,
    )
    return rehearsal, started


def test_names_from_plans_stay_in_the_run_folder(tmp_path, monkeypatch):
    rehearsal, started = fake_rehearsal(tmp_path, monkeypatch)
    rehearsal.start_peer("../../etc/x --tied")
    (arguments,) = started
    assert "--name=../../etc/x --tied" in arguments
    assert arguments[arguments.index("--log") + 1] == str(tmp_path / "run" / "log-of-.._.._etc_x_--tied.txt")
    with pytest.raises(InvalidInput, match="there already"):
        rehearsal.start_peer("../../etc/x --tied")
    rehearsal.processes.clear()


@pytest.mark.parametrize(("speed", "told"), [(3.0, (3.0,)), ((3.0, 1.5, 9.0), (3.0, 1.5, 9.0))])
def test_a_rehearsed_peer_is_told_its_speed_in_every_stage(tmp_path, monkeypatch, speed, told):
    rehearsal, started = fake_rehearsal(tmp_path, monkeypatch)
    rehearsal.start_peer("a", speed)
    rehearsal.start_peer("b", device="auto")
    first, second = map(parse_arguments, started)
    assert (first.speed, first.device, first.turn) == (told, "cpu", 0)
    assert (second.speed, second.device, second.turn) == (None, "auto", 1)
    rehearsal.processes.clear()


@pytest.mark.parametrize("text", ["0", "1,-1", "inf", "fast"])
def test_a_speed_that_is_none_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["peer", "127.0.0.1:1", f"--speed={text}"])
    assert "--speed" in capsys.readouterr().err


class FakeProcess:
    def start(self):
        pass

    def is_alive(self):
        return True
