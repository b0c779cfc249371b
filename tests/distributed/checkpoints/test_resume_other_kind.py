"""Training goes from a static run to a swarm, to a swarm with another cut, and back, as if nothing had happened."""

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.settings import WiringSettings
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster, swarm_plan

pytestmark = pytest.mark.distributed

WORKLOAD = preset("tiny-gpt", global_batch=8, micro_batch=2)
CLUSTER = small_cluster(3, bandwidth="200 Mbit/s", latency="2 ms")
STATIC = chain_plan([4], [WORKLOAD.boundaries[1]], cluster=CLUSTER, workload=WORKLOAD)
TO = {"static": 3, "swarm": 6, "other cut": 9, "static again": 12}


def swarm(cut, peers):
    plan = swarm_plan(peers, [WORKLOAD.boundaries[cut]], cluster=CLUSTER, workload=WORKLOAD)
    return plan.replace(wiring=WiringSettings(trainers=1, slots=4))


PLANS = {
    "static": STATIC,
    "swarm": swarm(2, [2, 1]),
    "other cut": swarm(0, [1, 1]).replace(delayed_updates=False),
    "static again": chain_plan([4], [], cluster=CLUSTER, workload=WORKLOAD),
}


def test_static_to_swarm_to_another_cut_and_back(client):
    runs, found = [], {}
    for name, plan in PLANS.items():
        resume = str(runs[-1].path) if runs else None
        run = client.start(plan, TrainConfig(steps=TO[name], checkpoint_every=3, resume=resume))
        assert run.wait(120).state == "finished", run.log(None)
        run.read_all()
        found |= dict(run.losses())
        if runs:
            assert run.resumed()[:2] == (TO[name] - 3, str(runs[-1].path))
        runs.append(run)
    _, wanted = train_reference(WORKLOAD, TrainConfig(steps=12))
    assert [found[step] for step in sorted(found)] == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(InvalidInput, match="leave nothing to do"):
        client.start(PLANS["swarm"], TrainConfig(steps=12, resume=str(runs[-1].path)))
    with pytest.raises(InvalidInput, match="give the same seed"):
        client.start(PLANS["swarm"], TrainConfig(steps=20, seed=1, resume=str(runs[0].path)))
