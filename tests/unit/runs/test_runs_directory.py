import json
import os
import stat
import threading
from pathlib import Path

import psutil
import pytest

from hetplanner.errors import InvalidInput, Preempted, RunError
from hetplanner.plan.files.plan_files import load_plan
from hetplanner.plan.files.train_files import load_config
from hetplanner.plan.train import TrainConfig
from hetplanner.runs import directory as directories
from hetplanner.runs import home as homes
from hetplanner.runs.directory import RUN_ID, create_run_directory, find_run, list_run_ids, new_run_id
from hetplanner.runs.run import list_runs, open_run
from hetplanner.runs.status import RunStatus, raise_if_lost, read_status, write_status
from tests.support.plans.factories import chain_plan


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def plan():
    return chain_plan(shares=(1,), cuts=(4,))


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- ids and directories --------------------------------------------------------------------------


def test_ids_are_readable_safe_and_sort_by_age():
    old, new = new_run_id("GPT-3 XL/../x", 0.0), new_run_id("a", 1.7e9)
    assert old < new
    assert old.startswith("19700101-000000-gpt-3-xl-x-")
    assert RUN_ID.match(old)
    assert RUN_ID.match(new_run_id("…", 0.0))


def test_a_run_directory_holds_plan_and_config(home, plan):
    run_id, directory = create_run_directory(plan, TrainConfig(steps=7, seed=3))
    assert directory.path == home / "runs" / run_id
    assert load_plan(directory.plan_file) == plan
    assert load_config(directory.config_file) == TrainConfig(steps=7, seed=3)
    assert json.loads(directory.config_file.read_text())["format"] == "hetplanner/run@1"
    assert mode(home) == mode(home / "runs") == mode(directory.path) == 0o700


def test_a_chosen_folder_is_registered(home, plan, tmp_path):
    run_id, directory = create_run_directory(plan, TrainConfig(), tmp_path / "deep" / "mine")
    assert directory.path == tmp_path / "deep" / "mine"
    assert list_run_ids() == [run_id]
    assert find_run(run_id)[1].path == directory.path
    assert find_run(directory.path)[0] == run_id
    directory.plan_file.unlink()
    directory.config_file.unlink()
    directory.path.rmdir()
    assert list_run_ids() == []


@pytest.mark.parametrize("bad", ["relative/dir", "/proc/nothing/here", "/dev/null"])
def test_an_unusable_folder_is_refused(home, plan, bad):
    with pytest.raises(InvalidInput, match=r"absolute|cannot be used"):
        create_run_directory(plan, TrainConfig(), Path(bad))
    assert list_run_ids() == []


def test_a_folder_with_files_is_refused(home, plan, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(InvalidInput, match=r"full: must be an empty folder, it holds files; give another with -o$"):
        create_run_directory(plan, TrainConfig(), tmp_path / "full")


def test_a_run_is_closed_to_others_wherever_it_lies(home, plan, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o777)
    for out, parent in ((None, None), (tmp_path / "made", None), (tmp_path / "mine", None), (None, tmp_path)):
        _, directory = create_run_directory(plan, TrainConfig(), out, parent=parent)
        assert mode(directory.path) == 0o700
        assert mode(directory.config_file) == 0o600


def test_a_folder_of_another_user_is_refused(home, plan, tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    homes.runs_directory()
    me = os.getuid()
    monkeypatch.setattr("hetplanner.runs.directory.os.getuid", lambda: me + 1)
    with pytest.raises(InvalidInput, match=f"belongs to .*user {me}"):
        directories._close(tmp_path / "theirs")


def test_a_folder_that_every_user_may_rename_is_refused(home, plan, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for chosen in ({"out": tmp_path / "open" / "run"}, {"parent": tmp_path / "open"}):
        with pytest.raises(InvalidInput, match=r"open: every user may rename what lies in it"):
            create_run_directory(plan, TrainConfig(), **chosen)
    (tmp_path / "open").chmod(0o1777)  # as /tmp
    create_run_directory(plan, TrainConfig(), tmp_path / "open" / "run")


def test_what_another_user_put_in_place_of_a_run_is_none(home, plan, tmp_path, monkeypatch):
    run_id, _ = create_run_directory(plan, TrainConfig(), tmp_path / "run")
    assert list_run_ids() == [run_id]
    link = homes.runs_directory() / run_id
    monkeypatch.setattr("hetplanner.runs.directory.runs_directory", lambda _: link.parent)
    monkeypatch.setattr("hetplanner.runs.directory.os.getuid", lambda: os.geteuid() + 1)
    assert list_run_ids() == []


def test_runs_are_found_by_part_of_their_id_and_last(home, plan):
    first, _ = create_run_directory(plan, TrainConfig())
    second, _ = create_run_directory(plan, TrainConfig())
    assert find_run(first[3:])[0] == first
    assert find_run("last")[0] == max(first, second)
    with pytest.raises(InvalidInput, match="fits 2 runs"):
        find_run(first[:4])
    for nothing in ("", "nope", "../..", "/etc"):
        with pytest.raises(InvalidInput, match="no such run"):
            find_run(nothing)


# -- home -----------------------------------------------------------------------------------------


def test_a_directory_of_ours_is_made_private_again(home):
    folder = homes.agent_directory()
    folder.chmod(0o755)
    assert mode(homes.agent_directory()) == 0o700


def test_a_link_in_place_of_our_directory_is_refused(home, tmp_path):
    home.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (home / "agent").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="must be a directory of your own"):
        homes.agent_directory()


def test_a_home_that_others_may_write_or_own_is_not_trusted(home, monkeypatch):
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(InvalidInput, match=r"others may write it, so it is not trusted; run `chmod go-w"):
        homes.runs_directory()
    home.chmod(0o755)
    assert homes.runs_directory().is_dir()
    me = os.getuid()
    monkeypatch.setattr(homes.os, "getuid", lambda: me + 1)
    with pytest.raises(InvalidInput, match=f"belongs to .*user {me}.*use one of your own"):
        homes.runs_directory()


def test_a_group_of_ones_own_is_nobody_else(monkeypatch, tmp_path):
    tmp_path.chmod(0o775)
    user, info = homes.pwd.getpwuid(os.getuid()), tmp_path.stat()
    for members, is_trusted in (([], True), ([user.pw_name], True), (["somebody"], False)):
        group = homes.grp.struct_group((user.pw_name, "x", info.st_gid, members))
        monkeypatch.setattr(homes.grp, "getgrgid", lambda _, group=group: group)
        if is_trusted:
            homes.refuse_others(tmp_path, info)
        else:
            with pytest.raises(InvalidInput, match="others may write it"):
                homes.refuse_others(tmp_path, info)


def test_a_home_that_cannot_be_made_is_one_clear_line(monkeypatch):
    monkeypatch.setenv("HETPLANNER_HOME", "/proc/no/home")
    with pytest.raises(RunError, match="set HETPLANNER_HOME to a writable folder"):
        homes.runs_directory()


def test_a_long_home_gets_a_short_socket(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    long_home = tmp_path / ("x" * 120)
    path = homes.socket_path(long_home)
    assert len(os.fsencode(path)) <= homes.MAX_SOCKET_PATH_BYTES
    assert path.parent.parent == tmp_path or path.parent.parent.name == "tmp"
    assert mode(path.parent) == 0o700
    assert homes.socket_path(long_home) == path
    assert homes.socket_path(tmp_path / ("y" * 120)) != path


# -- status ---------------------------------------------------------------------------------------


def test_a_status_reads_back(tmp_path):
    status = RunStatus(run="r", state="failed", message="m", created_unix_s=1.0, ranks=2, last_lines=("a",))
    write_status(tmp_path / "status.json", status)
    assert read_status(tmp_path / "status.json") == status
    assert status.is_over
    assert not status.replace(state="stopping").is_over
    assert json.loads((tmp_path / "status.json").read_text())["format"] == "hetplanner/status@3"
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_a_status_of_the_first_version_reads(tmp_path):
    fields = {"format": "hetplanner/status@1", "run": "r", "state": "finished", "created_unix_s": 1.0, "ranks": 2}
    (tmp_path / "status.json").write_text(json.dumps(fields))
    assert read_status(tmp_path / "status.json").is_over


def test_a_preempted_run_is_over_unless_it_is_started_again():
    status = RunStatus(run="r", state="preempted", message="told to end", created_unix_s=1.0, ranks=2)
    assert status.is_over
    assert not status.replace(restart_due=True).is_over
    with pytest.raises(Preempted, match=r"run r: told to end; .*--resume r") as found:
        raise_if_lost("r", status)
    assert found.value.exit_code == 75
    with pytest.raises(RunError):
        raise_if_lost("r", status.replace(state="failed"))
    raise_if_lost("r", status.replace(state="stopped"))


def test_a_reader_never_sees_half_a_status(tmp_path):
    path = tmp_path / "status.json"
    long = RunStatus(run="r", state="failed", created_unix_s=1.0, ranks=2, last_lines=("x" * 1000,) * 40)
    short = RunStatus(run="r", state="running", created_unix_s=1.0, ranks=2)
    write_status(path, short)
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(read_status(path).state for _ in range(200)))
    reader.start()
    while reader.is_alive():
        write_status(path, long)
        write_status(path, short)
    reader.join()
    assert len(seen) == 200


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("{", "not JSON"),
        ('{"format": "hetplanner/status@4"}', "newer than this hetplanner reads"),
        ('{"format": "hetplanner/status@1", "run": "r"}', "state: required field is missing"),
        ('{"format": "hetplanner/status@1", "rum": "r"}', "missing|unknown field"),
    ],
)
def test_a_damaged_status_is_one_clear_line(tmp_path, text, law):
    (tmp_path / "status.json").write_text(text)
    with pytest.raises(InvalidInput, match=law):
        read_status(tmp_path / "status.json")


def test_lists_need_no_agent_and_pass_over_damaged_runs(home, plan):
    run_id, directory = create_run_directory(plan, TrainConfig())
    create_run_directory(plan, TrainConfig())  # never got a status
    write_status(directory.status_file, RunStatus(run=run_id, state="finished", created_unix_s=1.0, ranks=2))
    assert [status.run for status in list_runs()] == [run_id]
    assert open_run(run_id).status().state == "finished"
    assert repr(open_run(run_id)) == f"Run({run_id!r})"


def test_without_an_agent_a_run_without_processes_is_shown_as_lost(home, plan):
    run_id, directory = create_run_directory(plan, TrainConfig())
    running = RunStatus(run=run_id, state="running", created_unix_s=1.0, ranks=2, pid=2**22 + 1, pid_created_unix_s=1.0)
    write_status(directory.status_file, running)
    (lost,) = list_runs()
    assert lost.state == "failed"
    assert "no agent saw it" in lost.message
    assert read_status(directory.status_file) == running  # a reader writes nothing

    me = psutil.Process()
    holder = {"pid": me.pid, "began_s": me.create_time()}
    (homes.agent_directory() / homes.AGENT_FILE).write_text(json.dumps(holder))
    assert list_runs() == [running]  # a living agent is about to say how it ended
