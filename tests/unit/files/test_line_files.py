import errno

import pytest

from hetplanner.line_files import LineFile, append_line
from tests.support.files.full_disks import Budget


def told(lost: int) -> bytes:
    return b"lost %d" % lost


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"line %d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG])
@pytest.mark.parametrize("free", range(0, 56, 5))
def test_a_disk_that_fills_up_anywhere_leaves_whole_lines_and_nothing_is_lost(tmp_path, monkeypatch, free, number):
    lines, disk = numbered(8), Budget(monkeypatch, free, number)
    file = LineFile(tmp_path / "a", told)
    for line in lines:
        file.add(line)
        file.flush()
        content = (tmp_path / "a").read_bytes()
        assert content == b"" or content.endswith(b"\n")
        assert content.splitlines() == lines[: len(content.splitlines())]
    assert file.error is not None
    assert file.error.errno == number
    disk.free = float("inf")
    assert file.flush()
    assert file.error is None
    assert (tmp_path / "a").read_bytes().splitlines() == lines


def test_beyond_the_bound_lines_are_dropped_counted_and_told(tmp_path, monkeypatch):
    disk = Budget(monkeypatch, 0)
    file = LineFile(tmp_path / "a", told, max_waiting_bytes=100)
    for number in range(100):
        file.add(b"span %d" % number, may_be_lost=True)
        file.flush()
        if number % 20 == 0:
            file.add(b"step %d" % (number // 20))
    disk.free = float("inf")
    file.add(b"last", may_be_lost=True)
    assert file.flush()
    file.close()
    lines = (tmp_path / "a").read_bytes().splitlines()
    first = lines[0].removeprefix(b"lost ")
    steps = [line for line in lines if line.startswith(b"step")]
    assert steps == [b"step %d" % number for number in range(5)], "what must not be lost is kept before spans"
    kept = [line for line in lines if line.startswith(b"span")]
    assert int(first) + len(kept) == 100
    assert lines[-1] == b"last"


def test_when_only_important_lines_wait_the_oldest_go(tmp_path, monkeypatch):
    disk = Budget(monkeypatch, 0)
    file = LineFile(tmp_path / "a", told, max_waiting_bytes=50)
    for line in numbered(100):
        file.add(line)
        file.flush()
    disk.free = float("inf")
    file.close()
    lines = (tmp_path / "a").read_bytes().splitlines()
    assert lines[0] == b"lost %d" % (100 - len(lines) + 1)
    assert lines[1:] == numbered(100)[-len(lines) + 1 :]


def test_a_disk_that_stays_full_costs_the_least_at_the_end(tmp_path, monkeypatch):
    disk = Budget(monkeypatch, 0)
    file = LineFile(tmp_path / "a", told)
    for number in range(50):
        file.add(b"span %d" % number, may_be_lost=True)
    file.add(b"done")
    file.flush()
    disk.free = 15
    file.close()
    assert (tmp_path / "a").read_bytes() == b"lost 50\ndone\n"
    file.close()


def test_a_torn_line_of_a_killed_writer_is_cut_off(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo\nthr" + b"e" * 200_000)
    file = LineFile(path, told)
    assert path.read_bytes() == b"one\ntwo\n"
    file.add(b"three")
    file.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    path.write_bytes(b"no line end at all")
    LineFile(path, told).close()
    assert path.read_bytes() == b""


def test_a_file_that_is_there_can_be_refused_and_a_link_is_never_followed(tmp_path):
    (tmp_path / "a").write_text("x\n")
    with pytest.raises(FileExistsError):
        LineFile(tmp_path / "a", told, new=True)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="symbolic"):
        LineFile(tmp_path / "b", told)


@pytest.mark.parametrize("free", range(6))
def test_one_line_is_added_whole_or_not_at_all(tmp_path, monkeypatch, free):
    path = tmp_path / "a"
    append_line(path, b"one")
    disk = Budget(monkeypatch, free)
    if free < 4:
        with pytest.raises(OSError, match="No space"):
            append_line(path, b"two")
        disk.free = 10
    append_line(path, b"two" if free < 4 else b"2")
    assert path.read_bytes().startswith(b"one\ntwo\n" if free < 4 else b"one\n2\n")
