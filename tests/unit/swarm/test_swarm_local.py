"""Local steps of a swarm's stage: engines as peers against one process, what a joiner gets, what is refused."""

import random

import pytest
import torch

from hetplanner.elastic.protocol.identity import Stamp, Token, Version
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.data import open_batches
from hetplanner.swarm.peer.engine import StageEngine, Sum
from hetplanner.swarm.peer.state import receive_state, state_sizes
from hetplanner.swarm.spec import spec_of
from tests.support.plans.factories import swarm_plan, tiny_workload
from tests.support.processes.own_loop import finish
from tests.support.swarms.local_swarm import train_local
from tests.support.swarms.swarm_runs import engines_of, reference_losses, small_spec, tokens_of

NESTEROV = OuterOptimizer(learning_rate=0.7, momentum=0.9)


class Peers:
    """Engines of all stages; `names` by stage. They average by a sum in this process."""

    def __init__(self, spec, names):
        self.spec, self.names = spec, names
        self.engines = {
            (s, name): engine for index in range(max(map(len, names))) for s, engine in enumerate(engines_of(spec))
            for name in names[s][index : index + 1]
        }  # fmt: skip
        self.batches = open_batches(spec.train, spec.workload)
        self.losses = []

    def forward_and_back(self, step, micro_batch, path):
        """Every engine of a path keeps its gradient."""
        key, parts = ("caller:1", micro_batch), tokens_of(self.batches, step, micro_batch)
        chain = [self.engines[replica] for replica in enumerate(path)]
        for engine in chain:
            parts = [memoryview(p) for p in engine.forward(key, micro_batch, step, parts)]
        for engine in reversed(chain):
            parts = [memoryview(p) for p in engine.backward(key, Token(micro_batch, engine.stage, 0), parts)]

    def step(self, step, paths, *, aborted=False):
        """All micro-batches, and the step's commit: `aborted` after an attempt that came to nothing."""
        for micro_batch, path in paths.items():
            self.forward_and_back(step, micro_batch, path)
        for attempt in (2 * step, 2 * step + 1)[0 if aborted else 1 :]:
            answers = self.reduce(Stamp(1, attempt), paths)
            if attempt % 2 == 0:
                for engine in self.engines.values():
                    engine.drop_sum(Stamp(1, attempt))
        for engine in self.engines.values():
            engine.drop()
            engine.apply(Stamp(1, 2 * step + 1), Version(0, step + 1))
        for s in range(self.spec.num_stages):
            assert sum(a.count for (stage, _), a in answers.items() if stage == s) == len(paths)
        loss = sum(a.loss_sum for (stage, _), a in answers.items() if stage == self.spec.num_stages - 1)
        self.losses.append(loss / self.spec.workload.tokens_per_step)
        return answers

    def reduce(self, attempt, paths):
        own = {
            (s, name): engine.fold([Token(m, s, 0) for m, path in paths.items() if path[s] == name])
            for (s, name), engine in self.engines.items()
        }
        offered = {replica: self.engines[replica].offer(total) for replica, total in own.items()}
        answers = {}
        for replica, engine in self.engines.items():
            total = own[replica]
            if offered[replica] is not None:
                here = [offer for (s, _), offer in offered.items() if s == replica[0]]
                gradient = torch.stack([offer.gradient for offer in here]).sum(0)
                total = Sum(gradient, sum(offer.count for offer in here), 0.0)
            answers[replica] = engine.keep_sum(attempt, total, own[replica])
        return answers

    def digests(self, stage):
        return {engine.digest() for (s, _), engine in self.engines.items() if s == stage}


def draw_paths(spec, names, seed):
    """Every micro-batch takes a random peer of each stage; some have nothing to do in some step."""
    rng = random.Random(seed)
    return [
        {m: tuple(rng.choice(here) for here in names) for m in range(spec.settings.micro_batches)}
        for _ in range(spec.train.steps)
    ]


@pytest.mark.parametrize("outer", [None, NESTEROV], ids=["mean", "nesterov"])
def test_peers_that_step_by_themselves_and_average_train_as_the_same_peers_in_one_process(outer):
    spec = small_spec(steps=6, micro_batches=4, stages=2, local_steps=3, outer=outer)
    names = (("a", "b", "c"), ("d", "e"))
    peers, paths = Peers(spec, names), draw_paths(spec, names, seed=1)
    assert any(len({path[0] for path in step.values()}) < 3 for step in paths), "somebody has nothing to do"
    for step in range(6):
        answers = peers.step(step, paths[step], aborted=step in (1, 2))
        assert {a.samples for a in answers.values()} == ({12} if step in (2, 5) else {None})
        assert all(len(peers.digests(s)) == 1 for s in range(2))
        weights = {engine.model.flat.sum().item() for (s, _), engine in peers.engines.items() if s == 1}
        assert (len(weights) == 1) == (step in (2, 5))
    stages, losses = train_local(spec, paths)
    assert peers.losses == pytest.approx(losses, rel=1e-6)
    for s, wanted in enumerate(stages):
        assert (peers.engines[s, names[s][0]].model.flat - wanted).abs().max() < 2e-5  # steps are of 1e-3


def test_with_one_peer_a_stage_and_the_mean_it_is_single_process_training():
    spec = small_spec(steps=4, micro_batches=2, stages=2, local_steps=2)
    peers = Peers(spec, (("a",), ("b",)))
    for step in range(4):
        peers.step(step, dict.fromkeys(range(2), ("a", "b")))
    plain = small_spec(steps=4, micro_batches=2, stages=2)
    assert peers.losses == pytest.approx(reference_losses(plain), rel=1e-5)


def test_a_joiner_goes_on_from_its_neighbour_and_weighs_nothing_until_it_has_worked():
    spec = small_spec(steps=4, micro_batches=2, stages=1, local_steps=2, outer=NESTEROV)
    peers = Peers(spec, (("a", "b"),))
    peers.step(0, {0: ("a",), 1: ("b",)})
    source, joiner = peers.engines[0, "b"], StageEngine(spec, torch.device("cpu"))

    async def streamed(state):
        async def pieces():
            yield state.head()
            for piece in state.pieces():
                yield piece

        joiner.build(0)
        return await receive_state(pieces(), 0, state_sizes(spec, 0))

    joiner.load(finish(streamed(source.state())))
    assert torch.equal(joiner.model.flat, source.model.flat)
    peers.engines[0, "joiner"] = joiner
    alone = Peers(spec, (("a", "b"),))
    alone.step(0, {0: ("a",), 1: ("b",)})
    for both in (peers, alone):
        answers = both.step(1, {0: ("a",), 1: ("a",)})  # the joiner has done nothing in this round
        assert {a.samples for a in answers.values()} == {4}
        assert len(both.digests(0)) == 1
    assert peers.digests(0) == alone.digests(0)
    answers = peers.step(2, {0: ("joiner",), 1: ("a",)})
    del peers.engines[0, "joiner"]  # it dies with what it learned
    answers = peers.step(3, {0: ("a",), 1: ("b",)})
    assert {a.samples for a in answers.values()} == {3}


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"tied": True}, "local_steps: must be 1, without outer, where stages share a weight"),
        ({"delayed": True}, "delayed_updates: do not go with local steps"),
        ({"steps": 5}, "steps: must be a multiple of 2 local steps, got 5; take 4 or 6"),
        ({"checkpoint_steps": 3}, "checkpoint_every: must be a multiple of 2 local steps, got 3; take 2 or 4"),
        ({"clip_norm": 1.0}, "clip_norm: with local steps there is no whole gradient"),
    ],
)
def test_what_does_not_go_with_local_steps_is_refused(changes, law):
    with pytest.raises(ValueError, match=law):
        small_spec(**({"local_steps": 2} | changes))


def test_a_plan_says_local_steps_and_the_run_takes_them():
    tied = tiny_workload()
    assert tied.transformer is not None
    with pytest.raises(InvalidInput, match="where stages share a weight"):
        swarm_plan([2, 2], [3], workload=tied).replace(local_steps=4)
    untied = tied.replace(transformer=tied.transformer.replace(tie_embeddings=False))
    plan = swarm_plan([2, 2], [3], workload=untied).replace(local_steps=4, outer=NESTEROV)
    spec = spec_of(plan, TrainConfig(steps=8))
    assert (spec.local_steps, spec.outer, spec.settings.round_steps) == (4, NESTEROV, 4)
    assert tuple(state_sizes(spec, 0)) == ("weights", "mean", "square", "anchor", "velocity")
    with pytest.raises(InvalidInput, match="steps: must be a multiple of 4"):
        spec_of(plan, TrainConfig(steps=7))
