"""What a run will write is known before it starts, and refused where it cannot fit."""

from collections import namedtuple
from pathlib import Path

import pytest

from hetplanner.elastic.coordinator.decisions import Booted, Committed, decode_decisions
from hetplanner.elastic.protocol.identity import Stamp, Version
from hetplanner.errors import Infeasible
from hetplanner.launchers import disk
from hetplanner.launchers.disk import check_disk, disk_need
from hetplanner.plan.train import TrainConfig
from hetplanner.schedule.order import make_schedule
from hetplanner.swarm.decision_file import DecisionFile
from tests.support.files.full_disks import Budget
from tests.support.plans.factories import chain_plan, swarm_plan

Usage = namedtuple("Usage", "total used free")
PLAN = chain_plan(shares=(2, 1), cuts=(4,))


def with_free(monkeypatch, free):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: Usage(10**12, 0, free))


def test_every_replica_of_a_stage_writes_weights_and_two_moments():
    need = disk_need(PLAN, TrainConfig(checkpoint_every=5))
    workload = PLAN.problem.workload
    assert 2 * 12 * workload.graph.num_params <= need.checkpoint < 2 * 12 * workload.graph.num_params * 1.5
    assert need.model == pytest.approx(4 * workload.graph.num_params, rel=0.3)
    assert need.all == 3 * need.checkpoint + need.model + need.telemetry
    without = disk_need(PLAN, TrainConfig())
    assert (without.checkpoint, without.all) == (0, without.model + without.telemetry)


def test_spans_are_counted_as_the_schedule_has_them():
    actions = [action.kind for action in make_schedule(PLAN).actions]
    assert disk._spans_of_step(PLAN) == {kind: actions.count(kind) for kind in disk.SPAN_BYTES}


def test_what_cannot_fit_is_refused_with_numbers_and_remedy_and_what_is_tight_is_told(monkeypatch, tmp_path):
    need = disk_need(PLAN, TrainConfig(checkpoint_every=5))
    with_free(monkeypatch, need.least - 1)
    with pytest.raises(
        Infeasible, match=r"one checkpoint \(.*\) and the model .* are free on the disk of .* -o, or write"
    ):
        check_disk(need, tmp_path / "not" / "there")
    with_free(monkeypatch, 1000)
    with pytest.raises(Infeasible, match=r"the run does not fit: the model"):
        check_disk(disk_need(PLAN, TrainConfig()), tmp_path)
    with_free(monkeypatch, need.least)
    assert "may fill up" in check_disk(need, tmp_path)
    with_free(monkeypatch, need.all)
    assert check_disk(need, tmp_path) == ""


def test_a_swarm_joins_its_stages_and_one_peer_of_each_writes():
    need = disk_need(swarm_plan([2, 1], [4]), TrainConfig(checkpoint_every=5, checkpoints_kept=1))
    assert need.parts == need.model
    assert need.all == 2 * need.checkpoint + 2 * need.model + need.telemetry


@pytest.mark.parametrize("free", range(0, 260, 13))
def test_a_decision_log_holds_whole_lines_whatever_fits_and_takes_the_rest_later(tmp_path, monkeypatch, free):
    path, disk_ = tmp_path / "decisions.log", Budget(monkeypatch, free)
    decisions = [Booted(1), *(Committed(1, Stamp(1, n), Version(0, n), 2.5) for n in (1, 2))]
    log, waiting = DecisionFile(path), list(decisions)
    while waiting:
        try:
            log.append(waiting[0])
        except OSError:
            assert decode_decisions(path.read_bytes()) == decisions[: len(decisions) - len(waiting)]
            assert path.read_bytes()[-1:] in (b"", b"\n")
            disk_.free = float("inf")
            continue
        waiting.pop(0)
    log.close()
    again = DecisionFile(Path(path))
    assert again.decisions == decisions, "nothing twice, nothing lost"
    again.close()
