"""Local steps of a swarm in one process: every peer's model by itself, given who worked on which micro-batch.

Nothing of a peer is used but its stage's model: torch's own AdamW inside a round, its SGD with Nesterov's momentum at
the end of one, autograd through all stages at once.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path

import torch

from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import open_batches
from hetplanner.swarm.peer.engine import StageEngine
from hetplanner.swarm.spec import SwarmSpec

Paths = list[dict[int, tuple[str, ...]]]
"""By step, then micro-batch: the peer of every stage."""

DID = "did "


def lone_paths(spec: SwarmSpec) -> Paths:
    """Of a swarm with one peer a stage."""
    one = dict.fromkeys(range(spec.settings.micro_batches), ("lone",) * spec.num_stages)
    return [one] * spec.train.steps


class Outer:
    """A stage's weights that all peers had, and torch's SGD on them."""

    def __init__(self, weights: torch.Tensor, spec: SwarmSpec) -> None:
        self.anchor = torch.nn.Parameter(weights.clone())
        rate, momentum = (spec.outer.learning_rate, spec.outer.momentum) if spec.outer else (1.0, 0.0)
        self._optimizer = torch.optim.SGD([self.anchor], lr=rate, momentum=momentum, nesterov=momentum > 0)

    def step(self, change: torch.Tensor) -> torch.Tensor:
        """By the mean change; returns the new weights."""
        self.anchor.grad = -change
        self._optimizer.step()
        return self.anchor.detach()


def train_local(spec: SwarmSpec, paths: Paths) -> tuple[list[torch.Tensor], list[float]]:
    """Weights of every stage after the last outer step, and the mean loss of every step."""
    workload, config = spec.workload, spec.train
    replicas = sorted({(s, peer) for step in paths for path in step.values() for s, peer in enumerate(path)})
    models = {replica: StageModel(workload, *spec.ops_of(replica[0]), config.seed) for replica in replicas}
    optimizers = {replica: _adamw(model, spec) for replica, model in models.items()}
    outers = [Outer(StageModel(workload, *spec.ops_of(s), config.seed).flat, spec) for s in range(spec.num_stages)]
    batches, losses = open_batches(config, workload), []
    worked: Counter[tuple[int, str]] = Counter()
    for step, by_micro_batch in enumerate(paths):
        assert sorted(by_micro_batch) == list(range(workload.num_micro_batches))
        now: Counter[tuple[int, str]] = Counter()
        loss_sum = 0.0
        for m, path in sorted(by_micro_batch.items()):
            x, batch = None, batches.draw(step, m)
            for replica in enumerate(path):
                x = models[replica].forward(x, batch, RngKey(config.seed, step, m))
                now[replica] += 1
            assert x is not None
            x.backward()
            loss_sum += float(x.detach())
        losses.append(loss_sum / workload.tokens_per_step)
        for replica, count in now.items():
            models[replica].flat_grad.div_(count * workload.micro_batch * workload.seq_len)
            for group in optimizers[replica].param_groups:
                group["lr"] = config.learning_rate_at(step)
            optimizers[replica].step()
            models[replica].flat_grad.zero_()
        worked += now
        if (step + 1) % spec.local_steps == 0:
            for s, outer in enumerate(outers):
                here = {replica: count for replica, count in worked.items() if replica[0] == s}
                changes = [(models[replica].flat - outer.anchor.detach()) * count for replica, count in here.items()]
                weights = outer.step(torch.stack(changes).sum(0) / sum(here.values()))
                for replica in replicas:
                    if replica[0] == s:
                        models[replica].flat.copy_(weights)
            worked.clear()
    return [outer.anchor.detach() for outer in outers], losses


def _adamw(model: StageModel, spec: SwarmSpec) -> torch.optim.AdamW:
    matrices, vectors = ([w for w in model.parameters if (w.ndim >= 2) == big] for big in (True, False))
    groups = [
        {"params": matrices, "weight_decay": spec.train.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=spec.train.betas)


def log_work() -> None:
    """To be planted in a peer: its log says for every committed step which micro-batches it stepped with."""
    fold, apply = StageEngine.fold, StageEngine.apply

    def fold_and_note(self: StageEngine, tokens: tuple) -> object:
        tokens = tuple(tokens)
        self.folded_tokens = tokens
        return fold(self, tokens)

    def apply_and_log(self: StageEngine, attempt: object, version: object, grad_norm: object = None) -> None:
        did = [self.version.step, self.stage, sorted(t.micro_batch for t in self.folded_tokens)]
        apply(self, attempt, version, grad_norm)
        logging.getLogger("work").info("%s%s", DID, json.dumps(did))

    StageEngine.fold, StageEngine.apply = fold_and_note, apply_and_log


def work_of(run_dir: Path, peer: str) -> list[tuple[int, int, list[int]]]:
    """Step, stage and micro-batches of every commit that a peer stepped with."""
    lines = (run_dir / f"log-of-{peer}.txt").read_text().splitlines()
    return [tuple(json.loads(line.split(DID, 1)[1])) for line in lines if f" {DID}" in line]


def paths_of(run_dir: Path, peers: list[str], spec: SwarmSpec) -> Paths:
    """Who worked on what, of peers that log it, in a run in which nothing was done twice."""
    found: list[dict[int, list[str]]] = [{} for _ in range(spec.train.steps)]
    for peer in peers:
        for step, stage, micro_batches in work_of(run_dir, peer):
            for m in micro_batches:
                path = found[step].setdefault(m, [""] * spec.num_stages)
                assert path[stage] == ""
                path[stage] = peer
    assert all(all(path) for step in found for path in step.values())
    return [{m: tuple(path) for m, path in step.items()} for step in found]
