"""Frames between head and host, and a host's files on the head: whole, in order, and no others."""

import io
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplanner.errors import RunError
from hetplanner.hosts.asking import reads_data
from hetplanner.hosts.framing import HELLO, PIECE_BYTES, FrameError, FrameWriter, read_frame, read_greeting
from hetplanner.hosts.mirror import Mirror, wanted_files
from hetplanner.hosts.on_host.sending import LINES, Changes
from hetplanner.launchers.hosts_file import Hosts, place_hosts
from hetplanner.plan.files.checkpoints import Manifest, RankFile, checkpoint_steps, publish
from hetplanner.plan.train import TrainConfig
from tests.support.plans.factories import chain_plan, hosted
from tests.support.plans.grouped import in_groups

PLAN = chain_plan(shares=(1, 1), cuts=(4,), cluster=hosted({"d0": "a", "d1": "b", "d2": "b", "d3": "c"}))
A, B, C = place_hosts(PLAN, Hosts())

# -- frames ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.dictionaries(st.text(max_size=5), st.integers()), st.binary(max_size=300)), max_size=5))
def test_frames_arrive_as_they_were_sent(frames):
    frames = [({k: v for k, v in header.items() if k != "bytes"}, body) for header, body in frames]
    pipe = io.BytesIO()
    writer = FrameWriter(pipe)
    for header, body in frames:
        writer.write(header, body)
    pipe.seek(0)
    assert [read_frame(pipe, 300) for _ in frames] == frames
    assert read_frame(pipe, 300) is None


@pytest.mark.parametrize(
    ("data", "law"),
    [
        (b"Welcome to gpu-a!\n", "no frame"),
        (b'{"file": "x"', "cut off"),
        (b"[1]\n", "no frame"),
        (b'{"bytes": 5}\nabc', "ends after 3 of 5 bytes"),
        (b'{"bytes": 101}\n' + bytes(101), "at most 100 are taken"),
        (b'{"bytes": -1}\n', "at most 100"),
        (b'{"bytes": true}\n', "at most 100"),
        (b'{"bytes": "5"}\n', "at most 100"),
        (b"[" * 100_000 + b"\n", "no frame"),
        (b"\xff\n", "no frame"),
    ],
)
def test_what_is_damaged_is_no_frame(data, law):
    with pytest.raises(FrameError, match=law):
        read_frame(io.BytesIO(data), 100)


def test_what_a_shell_says_before_is_passed_over():
    assert read_greeting(io.BytesIO(b"Last login: today\nmotd " + HELLO + b'{"pid": 7}\n')) == {"pid": 7}
    assert read_greeting(io.BytesIO(b"bash: python3: not found\n")) is None
    with pytest.raises(FrameError, match="our program does not begin"):
        read_greeting(io.BytesIO(b"noise\n" * 20_000))


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def sides(tmp_path):
    """The run's folder on the head, and on a host."""
    for name in ("head", "host"):
        (tmp_path / name).mkdir()
    return tmp_path / "head", tmp_path / "host"


def mirrored(head, host=A, config=None, **settings):
    config = config or TrainConfig(steps=10)
    return Mirror(head, wanted_files(PLAN, config, host), config.checkpoints_kept, settings.pop("lost", {}))


def bring(mirror, host_dir):
    """One connection: what the head asks for, and all that comes."""
    changes = Changes(host_dir, json.loads(json.dumps(mirror.rows())))
    frames = list(changes.frames())
    for header, piece in frames:
        mirror.take(json.loads(json.dumps(header)), piece)
    return changes, frames


def test_what_grows_comes_once_over_any_number_of_connections(sides):
    head, host = sides
    telemetry, log = host / "rank-0.jsonl", host / "log-0.txt"
    lines = [json.dumps({"type": "step", "step": step}).encode() + b"\n" for step in range(5)]
    telemetry.write_bytes(lines[0] + lines[1][:9])
    log.write_bytes(b"no newline yet")
    bring(mirrored(head), host)
    assert (head / "rank-0.jsonl").read_bytes() == lines[0]  # the torn line waits
    assert (head / "log-0.txt").read_bytes() == b"no newline yet"
    telemetry.write_bytes(b"".join(lines))
    mirror = mirrored(head)  # a head that was started anew
    changes, frames = bring(mirror, host)
    assert [header["at"] for header, _ in frames] == [len(lines[0])]
    assert (head / "rank-0.jsonl").read_bytes() == b"".join(lines)
    assert list(changes.frames()) == []
    assert (head / "rank-0.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_connection_that_breaks_in_the_middle_loses_and_doubles_nothing(sides):
    head, host = sides
    data = b"".join(b'{"step": %d}\n' % i for i in range(100_000))
    assert len(data) > 3 * PIECE_BYTES
    (host / "rank-0.jsonl").write_bytes(data)
    (host / "model.safetensors").write_bytes(os.urandom(2 * PIECE_BYTES + 7))
    mirror = mirrored(head)
    for cut in (1, 3, 4):  # so many frames arrive, then the network is gone
        for header, piece in list(Changes(host, mirror.rows()).frames())[:cut]:
            mirror.take(header, piece)
    assert not (head / "model.safetensors").exists()
    bring(mirror, host)
    assert (head / "rank-0.jsonl").read_bytes() == data
    assert (head / "model.safetensors").read_bytes() == (host / "model.safetensors").read_bytes()
    assert [p.name for p in head.iterdir() if p.name.startswith(".")] == []


def test_a_file_that_is_written_anew_comes_again(sides):
    head, host = sides
    mirror = mirrored(head)
    (host / "model.json").write_bytes(b"{}")
    changes, frames = bring(mirror, host)
    assert len(frames) == 1
    (host / "model.json").write_bytes(b'{"steps_of_stages": [3]}')
    for header, piece in changes.frames():
        mirror.take(header, piece)
    assert (head / "model.json").read_bytes() == b'{"steps_of_stages": [3]}'
    assert list(Changes(host, mirror.rows()).frames()) == []


def test_a_host_that_lost_the_end_of_a_file_goes_on_behind_what_the_head_has(sides):
    head, host = sides
    (host / "rank-0.jsonl").write_bytes(b'{"step": 0}\n{"step": 1}\n')
    mirror = mirrored(head)
    bring(mirror, host)
    (host / "rank-0.jsonl").write_bytes(b'{"step": 0}\n')  # its disk had no more when the power went
    bring(mirror, host)
    with (host / "rank-0.jsonl").open("ab") as file:
        file.write(b'{"type": "restart"}\n')
    later = mirrored(head, lost=mirror.lost)
    bring(later, host)
    assert (head / "rank-0.jsonl").read_bytes() == b'{"step": 0}\n{"step": 1}\n{"type": "restart"}\n'


def test_manifests_of_checkpoints_come_and_old_ones_go(sides):
    head, host = sides
    mirror = mirrored(head, config=TrainConfig(steps=10, checkpoint_every=2, checkpoints_kept=1))
    for step in (2, 4):
        part = host / "checkpoints" / f"step-{step}.part"
        part.mkdir(parents=True)
        file = RankFile(file="rank-0.safetensors", bytes=1, sha256="0" * 64)
        publish(part, part.with_name(f"step-{step:08d}"), Manifest(step=step, plan="0" * 64, seed=0, ranks=(file,)))
        bring(mirror, host)
        assert checkpoint_steps(head) == [step]
    unfinished = host / "checkpoints" / "step-00000006.part"
    unfinished.mkdir()
    (unfinished / "manifest.json").write_text("{}")
    bring(mirror, host)
    assert [path.name for path in (head / "checkpoints").iterdir()] == ["step-00000004"]


def test_what_a_log_has_beyond_its_limit_stays_on_the_host(sides):
    head, host = sides
    mirror = mirrored(head)
    row = next(row for row in mirror.rows() if row[0] == "log-0.txt")
    row[3] = 10
    (host / "log-0.txt").write_bytes(b"0123456789 and more")
    (_, piece), *rest = Changes(host, [row]).frames()
    assert (piece, rest) == (b"0123456789", [])


# -- hosts are trusted no further than their own files --------------------------------------------


def test_only_files_of_the_hosts_own_ranks_are_asked_for():
    names = {host.name: {one.name for one in wanted_files(PLAN, TrainConfig(), host)} for host in (A, B, C)}
    assert "model.safetensors" in names["a"]
    assert "model.safetensors" not in names["b"] | names["c"]
    assert {f"rank-{r}.jsonl" for r in (1, 2)} <= names["b"]
    assert not {"rank-0.jsonl", "rank-3.jsonl"} & names["b"]
    assert "model-stage-0.safetensors" in names["a"]
    assert "model-stage-0.safetensors" not in names["c"]
    grouped = in_groups(chain_plan([2], [4]), [1, 2])
    _, second = place_hosts(grouped, Hosts())
    names = {one.name for one in wanted_files(grouped, TrainConfig(), second)}
    assert {"rank-1.jsonl", "log-2.txt", "model-stage-1.safetensors"} <= names
    assert reads_data(grouped, second)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../../.bashrc",
            "/etc/passwd",
            "rank-1.jsonl",
            "status.json",
            "plan.json",
            "run.json",
            "launch.json",
            "stop",
        ),
        *("checkpoints/step-1/manifest.json", "checkpoints/step-00000001/../../x", "", None, 3, ["x"]),
        *("checkpoints/step-00000001/rank-0.safetensors", "rank-0.jsonl\n", "./rank-0.jsonl"),
    ],
)
def test_a_file_that_was_not_asked_for_is_not_taken(sides, name):
    with pytest.raises(RunError, match="was not asked for"):
        mirrored(sides[0]).take({"file": name, "at": 0, "mark": [1, 1]}, b"x")
    assert list(sides[0].iterdir()) == []


def test_manifests_are_taken_of_the_first_ranks_host_alone(sides):
    with pytest.raises(RunError, match="was not asked for"):
        mirrored(sides[0], B).take({"file": "checkpoints/step-00000001/manifest.json", "at": 0, "mark": [1, 1]}, b"x")


@pytest.mark.parametrize(
    ("header", "piece"),
    [
        ({"file": "rank-0.jsonl", "at": 5}, b"x"),
        ({"file": "rank-0.jsonl", "at": -1}, b"x"),
        ({"file": "rank-0.jsonl", "at": True}, b"x"),
        ({"file": "rank-0.jsonl"}, b"x"),
        ({"file": "model.json", "at": 0}, b"x"),
        ({"file": "model.json", "at": 0, "mark": [2**40, 1]}, b"x"),
        ({"file": "model.json", "at": 0, "mark": [-1, 1]}, b""),
        ({"file": "model.json", "at": 0, "mark": [1, 1]}, b"xx"),
        ({"file": "model.json", "at": 0, "mark": ["1", 1]}, b"x"),
    ],
)
def test_pieces_that_do_not_fit_are_not_taken(sides, header, piece):
    with pytest.raises(RunError):
        mirrored(sides[0]).take(header, piece)
    assert list(sides[0].iterdir()) == []


def test_a_link_in_a_files_place_is_not_followed(sides, tmp_path):
    (sides[0] / "log-0.txt").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic"):
        mirrored(sides[0]).take({"file": "log-0.txt", "at": 0}, b"x")
    assert not (tmp_path / "outside").exists()


def test_a_file_that_grows_without_end_is_not_taken_without_end(sides):
    mirror = mirrored(sides[0])
    one = next(one for one in wanted_files(PLAN, TrainConfig(steps=10), A) if one.kind == LINES)
    with (sides[0] / one.here).open("wb") as file:
        file.truncate(one.most - 1)
    mirror.take({"file": one.name, "at": one.most - 1}, b"12")
    assert (sides[0] / one.here).stat().st_size == one.most - 1
    assert mirror.full == {one.name}
