"""The commands of README and docs do what they say, taken from the text."""

import pytest

from tests.support.processes.patience import until
from tests.support.repository.documentation import (
    GROUPS,
    Scratch,
    all_commands,
    commands,
    has_placeholder,
    is_install,
    run_all,
)
from tests.support.runs.fake_launcher import processes_under

pytestmark = pytest.mark.distributed
# Of the budgets and of the steps of training that the text states.
SHARE, STEPS_SHARE = 0.05, 0.003
FILES = ("trace.json", "better.json", "front", "calibrated.json", "report.html", "resnet101.html", "net.json")
WRITTEN = {"command line": FILES, "tutorials": ("lab.html", "bert.json"), "weights": ("merged-model",)}


@pytest.mark.timeout(2400)  # forty commands, beside other tests
@pytest.mark.parametrize("group", GROUPS)
def test_every_documented_command_ends_well(group, tmp_path):
    scratch = Scratch(tmp_path, SHARE, STEPS_SHARE)
    scratch.prepare()
    try:
        run_all(scratch, text=GROUPS[group])
    finally:
        scratch.end()
    failed = [f"{done.command}\n  exit code {done.code}: {done.output[-2000:]}" for done in scratch.done if done.code]
    assert not failed, "\n".join(failed)
    home = tmp_path / "home"
    # What a killed command had started ends by itself, once it sees its pipe close.
    until(lambda: not processes_under(home), lambda: [process.cmdline() for process in processes_under(home)])
    for name in WRITTEN.get(group, ()):
        assert (tmp_path / name).exists(), name


def test_only_installs_other_hosts_and_runs_by_name_are_left_out():
    run = {part for command in all_commands() for part in ([command] if isinstance(command, str) else command)}
    left_out = [command for command in commands() if command not in run]
    assert len(run) >= 30
    assert all(is_install(command) or has_placeholder(command) for command in left_out)
    assert sum(has_placeholder(command) for command in left_out) <= 10


def test_every_command_is_of_one_group():
    assert sorted(command for text in GROUPS.values() for command in commands(text)) == sorted(commands())
