import errno
import os
import stat
from pathlib import Path

import pytest

from hetplanner.atomic_files import drafted, remove_drafts, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_with_the_mode_that_was_asked(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    write_whole(path, "new ü", mode=0o600, sync=True)
    assert path.read_text(encoding="utf-8") == "new ü"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["a.json"]


def test_a_new_file_obeys_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    def half(draft: Path) -> None:
        draft.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"), drafted(path) as draft:
        half(draft)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_file_that_is_there_is_kept_where_that_is_asked(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(FileExistsError):
        write_whole(path, "new", replace=False)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_link_put_in_the_place_of_a_draft_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "theirs").write_text("untouched")
    opened = os.open

    def exchanged(path, *more, **kept):
        handle = opened(path, *more, **kept)
        if str(path).endswith(".draft"):
            Path(path).unlink()
            Path(path).symlink_to(tmp_path / "theirs")
        return handle

    monkeypatch.setattr(os, "open", exchanged)
    write_whole(tmp_path / "a", "mine")
    assert (tmp_path / "theirs").read_text() == "untouched"


def test_drafts_have_names_that_nobody_can_foresee_and_follow_no_link(tmp_path, monkeypatch):
    seen = set()
    for _ in range(3):
        with drafted(tmp_path / "a") as draft:
            seen.add(draft.name)
    assert len(seen) == 3
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr("hetplanner.atomic_files.secrets.token_hex", lambda _: "known")
    (tmp_path / ".known.draft").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a", "mine")
    assert victim.read_text() == "precious"


def test_a_link_at_the_path_itself_is_replaced_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "a").symlink_to(victim)
    write_whole(tmp_path / "a", "mine")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "a").is_symlink()


def test_drafts_of_killed_writers_can_be_removed(tmp_path):
    (tmp_path / ".0123456789abcdef.draft").write_text("half")
    (tmp_path / ".tmpAb12Cd").write_text("half")
    (tmp_path / "model.safetensors").write_text("whole")
    assert len(remove_drafts(tmp_path)) == 2
    assert names(tmp_path) == ["model.safetensors"]
