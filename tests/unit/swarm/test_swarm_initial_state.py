"""What a swarm begins with: its own last whole checkpoint, another run's, that run's parents'; without any process."""

import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from hetplanner.elastic.coordinator import decisions
from hetplanner.elastic.protocol.identity import Stamp, Version
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.checkpoints import checkpoint_folder, rank_file
from hetplanner.plan.files.stage_checkpoints import DIGEST, FOLDER, checkpoint_path, digest_of
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.resuming import check_resume, checkpoints_of
from hetplanner.swarm.decision_file import DECISIONS_FILE, DecisionFile
from hetplanner.swarm.initial_state import (
    Source,
    adopt_from_hosts,
    begin,
    find_checkpoint,
    find_source,
    read_ledger,
    take_over,
)
from hetplanner.swarm.spec import spec_of
from tests.support.plans.factories import chain_plan, slow_swarm
from tests.unit.runtime.checkpoint.test_checkpoints import write_checkpoint

PLAN = slow_swarm((1, 1))


@pytest.fixture
def new_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))

    def make(name, plan=PLAN, **settings):
        create_run_directory(plan, TrainConfig(**({"steps": 10} | settings)), tmp_path / name)
        return tmp_path / name

    return make


def write_log(run_dir, *written):
    log = DecisionFile(run_dir / DECISIONS_FILE)
    for decision in written:
        log.append(decision)
    log.close()


def save(run_dir, stage, version):
    """As a peer does: the file, then the decision."""
    weights = np.full(4, stage + version.step, dtype=np.float32)
    (run_dir / FOLDER).mkdir(exist_ok=True)
    metadata = {"num_steps": str(version.step), DIGEST: digest_of([weights.data])}
    save_file({"weights": weights}, checkpoint_path(run_dir / FOLDER, stage, version), metadata=metadata)
    write_log(run_dir, decisions.CheckpointSaved(1, stage, version))


def commit(run_dir, *steps, lineage=0):
    write_log(run_dir, *(decisions.Committed(1, Stamp(1, step), Version(lineage, step)) for step in steps))


def trained(run_dir, steps, saved_at):
    """A run whose coordinator committed so many steps and whose peers all saved after some of them."""
    write_log(run_dir, decisions.Booted(1))
    for step in range(1, steps + 1):
        commit(run_dir, step)
        for stage in (0, 1) if step in saved_at else ():
            save(run_dir, stage, Version(0, step))
    return run_dir


def damage(run_dir, stage, version):
    path = checkpoint_path(run_dir / FOLDER, stage, version)
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\xff\xff\xff\x7e")


def decisions_of(run_dir):
    log = DecisionFile(run_dir / DECISIONS_FILE)
    log.close()
    return log.decisions


def test_a_new_swarm_decides_nothing(new_run):
    run = new_run("a")
    assert begin(run, 2).version == Version(0, 0)
    assert decisions_of(run) == []


def test_a_swarm_whose_processes_died_goes_back_to_its_newest_whole_checkpoint(new_run):
    run = trained(new_run("a"), 7, saved_at=(2, 4, 6))
    assert checkpoints_of(PLAN, run) == [6, 4, 2]
    damage(run, 1, Version(0, 6))
    (run / FOLDER / ".0123456789abcdef.draft").write_bytes(b"half")
    assert begin(run, 2).version == Version(1, 4)
    assert decisions_of(run)[-2:] == [
        decisions.CheckpointLost(1, 1, Version(0, 6)),
        decisions.SetBack(1, Version(1, 4)),
    ]
    assert not list((run / FOLDER).glob(".*"))
    before = decisions_of(run)
    begin(run, 2)
    assert decisions_of(run) == before


def test_without_a_checkpoint_it_begins_anew_and_a_finished_one_is_left_alone(new_run):
    run = trained(new_run("a"), 3, saved_at=())
    assert begin(run, 2).version == Version(1, 0)
    done = trained(new_run("b"), 10, saved_at=(10,))
    write_log(done, decisions.Finished(1, Version(0, 10)))
    ledger = begin(done, 2)
    assert ledger.is_finished(10)
    assert ledger.version == Version(0, 10)


def test_a_resumed_swarm_takes_the_checkpoint_over_once(new_run):
    parent = trained(new_run("parent"), 5, saved_at=(2, 4))
    child = new_run("child", resume=str(parent), steps=20)
    ledger = begin(child, 2, str(parent))
    assert (ledger.version, ledger.resumed) == (Version(0, 4), (4, str(parent)))
    assert checkpoints_of(PLAN, child) == [4]
    saved = [decisions.CheckpointSaved(0, stage, Version(0, 4)) for stage in (0, 1)]
    assert decisions_of(child) == [decisions.Resumed(0, Version(0, 4), str(parent)), *saved]
    write_log(child, decisions.Booted(1))
    commit(child, 5, 6)
    trained(new_run("later"), 9, saved_at=(8,))
    assert begin(child, 2, str(parent)).version == Version(1, 4)  # its own now
    assert [d for d in decisions_of(child) if isinstance(d, decisions.Resumed)] == [decisions_of(child)[0]]


def test_a_resumed_swarm_whose_own_checkpoints_are_gone_takes_the_other_runs_again(new_run):
    parent = trained(new_run("parent"), 5, saved_at=(4,))
    child = new_run("child", resume=str(parent), steps=20)
    begin(child, 2, str(parent))
    write_log(child, decisions.Booted(1))
    commit(child, 5, 6)
    damage(child, 0, Version(0, 4))
    damage(parent, 0, Version(0, 4))  # one file with two names
    with pytest.raises(InvalidInput, match="holds no whole checkpoint"):
        begin(child, 2, str(parent))
    for run in (parent, child):
        checkpoint_path(run / FOLDER, 0, Version(0, 4)).unlink()
    save(parent, 0, Version(0, 4))
    assert begin(child, 2, str(parent)).version == Version(1, 4)
    assert decisions_of(child)[-3:-2] == [decisions.Resumed(1, Version(1, 4), str(parent))]


def test_a_chain_of_runs_is_followed_to_the_one_that_holds_a_checkpoint(new_run):
    first = trained(new_run("first"), 5, saved_at=(2, 4))
    second = new_run("second", resume=str(first))  # ended before it began
    third = new_run("third", resume=str(second))
    source, saved = find_checkpoint(third, 2)
    assert (source, saved[0]) == (first, Version(0, 4))
    check_resume(PLAN, TrainConfig(steps=10, resume=str(third)))
    fourth = new_run("fourth", resume=str(third))
    assert begin(fourth, 2, str(third)).resumed == (4, str(first))
    write_log(fourth, decisions.Booted(1))  # it stopped before its first checkpoint
    commit(fourth, 5)
    assert find_checkpoint(fourth, 2) == (fourth, {0: Version(0, 4), 1: Version(0, 4)})


def test_a_chain_that_bites_its_tail_ends(new_run, tmp_path):
    run = new_run("a", resume=str(tmp_path / "b"))
    new_run("b", resume=str(run))
    assert find_checkpoint(run, 2) is None


def test_what_cannot_be_resumed_is_refused_with_the_reason(new_run, tmp_path):
    parent = trained(new_run("parent"), 5, saved_at=(2, 4))

    def check(plan=PLAN, run=parent, **settings):
        check_resume(plan, TrainConfig(**({"steps": 10, "resume": str(run)} | settings)))

    check()
    check_resume(PLAN, TrainConfig(steps=10))
    check(PLAN.replace(delayed_updates=True))  # another plan for the same training
    with pytest.raises(InvalidInput, match="has global_batch 24, the new plan 12; give both the same"):
        check(slow_swarm((1, 1), micro_batches=12))
    with pytest.raises(InvalidInput, match="was begun with seed 0, got 1; give the same seed"):
        check(seed=1)
    with pytest.raises(InvalidInput, match="has done 4 steps, so 4 leave nothing to do"):
        check(steps=4)
    with pytest.raises(InvalidInput, match="holds no whole checkpoint; runs write them"):
        check(run=new_run("empty"))
    for step in (2, 4):
        damage(parent, 0, Version(0, step))
    with pytest.raises(InvalidInput, match="holds no whole checkpoint"):
        check()
    check_resume(PLAN, TrainConfig(steps=10, resume=str(parent)), read_files=False)  # a page looks at names
    log = parent / DECISIONS_FILE
    log.write_bytes(b"nonsense\n" + log.read_bytes())
    with pytest.raises(InvalidInput, match=r"parent: decision log: line 1: damaged"):
        check()
    with pytest.raises(InvalidInput, match="nowhere holds no whole checkpoint"):
        check(run=tmp_path / "nowhere")


def test_a_swarm_goes_on_from_the_newest_whole_checkpoint_of_a_static_run(new_run):
    workload = PLAN.problem.workload
    static = chain_plan([24], [2], workload=workload, cluster=PLAN.problem.cluster)
    parent = new_run("static", plan=static)
    for step in (2, 4):
        write_checkpoint(parent, static, step, ranks=2)
    assert find_source(PLAN, str(parent)) == Source(parent, 4, None)
    path = checkpoint_folder(parent, 4) / rank_file(1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert find_source(PLAN, str(parent)) == Source(parent, 2, None)
    assert find_source(PLAN, str(parent), read_files=False) == Source(parent, 4, None)
    path = checkpoint_folder(parent, 2) / rank_file(0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidInput, match=r"static: step-00000004/rank-1.safetensors: is damaged"):
        check_resume(PLAN, TrainConfig(steps=10, resume=str(parent)))


def test_a_static_run_goes_on_from_a_swarm(new_run):
    parent = trained(new_run("parent"), 5, saved_at=(2, 4))
    static = chain_plan([24], [2], workload=PLAN.problem.workload, cluster=PLAN.problem.cluster)
    config = TrainConfig(steps=10, resume=str(parent))
    check_resume(static, config)
    with pytest.raises(InvalidInput, match="was begun with seed 0, got 1; give the same seed"):
        check_resume(static, config.replace(seed=1))
    with pytest.raises(InvalidInput, match="has done 4 steps, so 4 leave nothing to do"):
        check_resume(static, config.replace(steps=4))


def test_the_run_that_was_resumed_is_no_part_of_what_a_swarm_is(new_run):
    one, other = (spec_of(PLAN, TrainConfig(steps=10, resume=source)) for source in (None, "/runs/a"))
    assert one.fingerprint == other.fingerprint
    assert read_ledger(new_run("a")).version == Version(0, 0)


def test_a_swarm_over_hosts_goes_on_with_what_each_host_has_of_another_run(new_run):
    lead, peer, source, other = (new_run(name) for name in ("lead", "peer", "old-lead", "old-peer"))
    write_log(source, decisions.Booted(1))
    commit(source, 1, 2, 3)
    for stage, run_dir in ((0, source), (1, other)):
        save(run_dir, stage, Version(1, 2))
        save(run_dir, stage, Version(0, 2))  # of before it was set back
    for stage in (0, 1):
        write_log(source, decisions.CheckpointSaved(1, stage, Version(1, 2)))
    take_over(lead, source)
    take_over(peer, other)
    for mine, theirs, stage in ((lead, source, 0), (peer, other, 1)):
        path = checkpoint_path(mine / FOLDER, stage, Version(0, 2))
        assert path.read_bytes() == checkpoint_path(theirs / FOLDER, stage, Version(1, 2)).read_bytes()

    names = {path.name for run_dir in (source, other) for path in (run_dir / FOLDER).iterdir()}
    with pytest.raises(InvalidInput, match="the hosts have no whole checkpoint of all 2 stages"):
        adopt_from_hosts(lead, source, 2, names - {"stage-1-lineage-1-step-2.safetensors"})
    adopt_from_hosts(lead, source, 2, names)
    ledger = begin(lead, 2, None, {"stage-1-lineage-0-step-2.safetensors"})
    assert (ledger.version, ledger.resumed) == (Version(0, 2), (2, str(source)))
