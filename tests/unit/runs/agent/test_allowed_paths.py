"""What the agent offers to a page by name, and that a page gets nothing else."""

import json
import os

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import plan_to_data
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.allowed_paths import Choice, allowed_paths_file, read_allowed_paths, settle
from hetplanner.runs.agent.service import read_start_request
from hetplanner.runs.directory import create_run_directory, find_run
from hetplanner.schema import checked
from tests.support.plans.factories import chain_plan

PLAN = chain_plan(shares=(1, 1), cuts=(4,))


@pytest.fixture
def home(tmp_path):
    """A home with one offer of each kind."""
    (tmp_path / "words.txt").write_text("words " * 1000)
    (tmp_path / "scratch").mkdir()
    write(tmp_path, f'[data]\nwords = "{tmp_path}/words.txt"\n[output]\nscratch = "{tmp_path}/scratch"\n')
    return tmp_path


def write(home, text: str) -> None:
    file = allowed_paths_file(home)
    file.write_text(text)
    file.chmod(0o600)


def test_without_a_file_nothing_is_offered(tmp_path):
    offers = read_allowed_paths(tmp_path)
    assert (offers.data_names, offers.output_names) == ((), ())
    with pytest.raises(InvalidInput, match=r"data: 'words' is not offered by the agent \(none\); add it to agent.toml"):
        settle(Choice(data="words"), TrainConfig(), tmp_path)


def test_names_become_paths(home):
    assert read_allowed_paths(home).data_names == ("words",)
    assert read_allowed_paths(home).output_names == ("scratch",)
    config, parent = settle(Choice(data="words", output="scratch"), TrainConfig(steps=7), home)
    assert (config.steps, config.data) == (7, str(home / "words.txt"))
    assert parent == home / "scratch"
    assert settle(Choice(), TrainConfig(), home) == (TrainConfig(), None)


def test_the_home_folder_of_data_is_that_of_where_the_run_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    allowed_paths_file(tmp_path).write_text(
        '[data]\nwords = "~/words.txt"\n[hosts]\nlab = "/etc/hetplanner/lab.toml"\n'
    )
    allowed_paths_file(tmp_path).chmod(0o600)
    here, _ = settle(Choice(data="words"), TrainConfig(), tmp_path)
    there, _ = settle(Choice(data="words", hosts="lab"), TrainConfig(), tmp_path)
    assert (here.data, there.data) == (str(tmp_path / "me" / "words.txt"), "~/words.txt")


@pytest.mark.parametrize("name", ["/etc/passwd", "../words", "words/../words", "Words", "scratch", "x; rm -rf ~"])
def test_what_is_not_offered_is_refused(home, name):
    with pytest.raises(InvalidInput, match="not offered by the agent"):
        settle(Choice(data=name), TrainConfig(), home)
    with pytest.raises(InvalidInput, match="not offered by the agent"):
        settle(Choice(output=f"{name}x"), TrainConfig(), home)


@pytest.mark.parametrize("config", [TrainConfig(data="/etc/passwd"), TrainConfig(resume="/tmp")])
def test_a_choice_beside_a_path_is_refused(home, config):
    with pytest.raises(InvalidInput, match="data, eval_data, resume, init_from, adapter and copy_to are paths"):
        settle(Choice(), config, home)


def test_a_run_goes_on_by_its_id_only(home):
    run_id, directory = create_run_directory(PLAN, TrainConfig(), home=home)
    config, _ = settle(Choice(resume=run_id), TrainConfig(), home)
    assert config.resume == str(directory.path)
    with pytest.raises(InvalidInput, match="there is no run"):
        settle(Choice(resume=run_id[:-1]), TrainConfig(), home)
    with pytest.raises(InvalidInput, match="resume"):
        checked(Choice, {"resume": "../../etc"}, "choice")


def test_a_run_in_an_output_folder_is_registered_under_its_own_name(home):
    run_id, directory = create_run_directory(PLAN, TrainConfig(), home=home, parent=home / "scratch")
    assert directory.path == home / "scratch" / run_id
    assert find_run(run_id, home) == (run_id, directory)
    (home / "scratch" / run_id / "plan.json").unlink()
    with pytest.raises(InvalidInput, match="no run can be written there"):
        create_run_directory(PLAN, TrainConfig(), home=home, parent=home / "words.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[data]\nx = "relative/path"', r"agent.toml: data.x: must be an absolute path, or begin with ~/, got"),
        ("[data]\nx = 3", r"agent.toml: data.x: must be a valid string, got 3"),
        ('[dat]\nx = "/x"', r"agent.toml: dat: unknown field"),
        ("[data\n", r"not TOML"),
        ("\xff", r"not TOML"),
        ('[output]\n"" = "/x"', r"agent.toml: output"),
    ],
)
def test_a_file_that_is_not_right_says_where(home, text, message):
    allowed_paths_file(home).write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput, match=message):
        read_allowed_paths(home)


def test_a_file_that_others_may_write_is_not_trusted(home):
    allowed_paths_file(home).chmod(0o666)
    with pytest.raises(InvalidInput, match="others may write it"):
        read_allowed_paths(home)


def test_a_file_of_another_user_is_not_trusted(home, monkeypatch):
    me = os.getuid()
    monkeypatch.setattr("hetplanner.runs.home.os.getuid", lambda: me + 1)
    with pytest.raises(InvalidInput, match=f"belongs to .*user {me}"):
        read_allowed_paths(home)


def test_a_file_in_a_folder_that_others_may_write_is_not_trusted(home):
    home.chmod(0o777)
    with pytest.raises(InvalidInput, match="others may write it"):
        read_allowed_paths(home)


def test_an_output_folder_that_is_gone_is_named(home):
    (home / "scratch").rmdir()
    with pytest.raises(InvalidInput, match=r"output: scratch of agent.toml is no folder; make it"):
        settle(Choice(output="scratch"), TrainConfig(), home)


def test_a_request_holds_names_or_a_path_not_both():
    body = {"plan": plan_to_data(PLAN), "choice": {"data": "words"}}
    assert read_start_request(json.dumps(body).encode())[0].choice == Choice(data="words")
    with pytest.raises(InvalidInput, match="out is a path"):
        read_start_request(json.dumps(body | {"out": "/tmp/x"}).encode())
