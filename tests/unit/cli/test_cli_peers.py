"""`hetplanner peer join`: which runs a peer can join by name, and how it gets into their network."""

import os
import sys

import pytest

from hetplanner.cli.runs.peers import join
from hetplanner.errors import InvalidInput
from hetplanner.launchers.isolate import MODULE
from hetplanner.liveness.processes import created_unix_s
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.swarm.wire.certificates import run_certificates
from tests.support.plans.factories import chain_plan, swarm_plan


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """What takes the place of this process."""
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path))
    commands = []
    monkeypatch.setattr(os, "execv", lambda program, argv: commands.append((program, argv)))
    return commands


def run_of(plan, state="running", config=None, told=True):
    run_id, directory = create_run_directory(plan, config or TrainConfig())
    began_s = created_unix_s(os.getpid())
    status = RunStatus(
        run=run_id, state=state, created_unix_s=0.0, pid=os.getpid(), pid_created_unix_s=began_s, ranks=1
    )
    write_status(directory.status_file, status)
    if told:
        event = '{"time_s": 1.0, "kind": "boot", "boot": 1, "version": [0, 0], "address": "127.0.0.1:4321"}\n'
        (directory.path / "events.jsonl").write_text(event)
    return run_id, directory.path


def test_a_local_run_is_joined_by_its_name_with_its_certificates_in_its_network(executed):
    run_id, folder = run_of(swarm_plan([1, 1], [4]))
    certificates = run_certificates(folder)
    join(run_id, name="mine")
    ((program, argv),) = executed
    assert program == sys.executable
    assert argv[:7] == [sys.executable, "-m", MODULE, "--of", str(os.getpid()), "--", sys.executable]
    assert argv[argv.index("peer") + 1] == "127.0.0.1:4321"
    assert argv[argv.index("--certificates") + 1] == str(certificates)


def test_an_address_is_taken_as_it_is(executed, tmp_path):
    join("10.0.0.7:29400", host="10.0.0.8", certificates=tmp_path)
    ((_, argv),) = executed
    assert MODULE not in argv
    assert argv[argv.index("--certificates") + 1] == str(tmp_path)


@pytest.mark.parametrize(
    ("plan", "more", "law"),
    [
        (chain_plan(shares=(2, 2), cuts=(4,)), {}, "its plan is static: no peer can join it"),
        (swarm_plan([1, 1], [4]), {"state": "finished"}, "is finished; only a running swarm can be joined"),
        (swarm_plan([1, 1], [4]), {"told": False}, "is running; only a running swarm"),
        (swarm_plan([1, 1], [4]), {"config": TrainConfig(emulate_links=True)}, "its links are emulated"),
    ],
)
def test_what_cannot_be_joined_is_named(executed, plan, more, law):
    run_id, _ = run_of(plan, **more)
    with pytest.raises(InvalidInput, match=f"run {run_id}: .*{law}"):
        join(run_id)
    assert executed == []
