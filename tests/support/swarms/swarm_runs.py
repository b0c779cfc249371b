"""Small swarms for tests: a byte model of three stages, its reference losses, and what a run's folder says."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hetplanner.codecs.spec import Codec
from hetplanner.elastic.protocol.identity import Stamp, Token, Version
from hetplanner.elastic.protocol.settings import ElasticSettings
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import Batches, open_batches
from hetplanner.runtime.train.reference import train_reference
from hetplanner.swarm.event_log import EVENTS_FILE, parse_events
from hetplanner.swarm.launch.rehearsal import PRELOADED, Rehearsal
from hetplanner.swarm.peer.engine import StageEngine
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload
from tests.support.swarms.local_swarm import lone_paths, train_local

MICRO_BATCH, SEQ_LEN = 2, 32
PRELOADED.extend(("tests.support.training.preloaded", __name__))


def small_spec(
    steps: int = 4,
    micro_batches: int = 8,
    codec: str = "none",
    stages: int = 3,
    hidden: int = 32,
    recompute: bool = False,
    dropout: float = 0.0,
    checkpoint_steps: int = 0,
    tied: bool = False,
    in_flight: int = 100,
    shared_layers: int = 1,
    delayed: bool = False,
    local_steps: int = 1,
    outer: OuterOptimizer | None = None,
    clip_norm: float | None = None,
    **times: float,
) -> SwarmSpec:
    """A byte GPT of as many layers as stages."""
    model = TransformerConfig(
        vocab=256,
        max_seq_len=SEQ_LEN,
        hidden=hidden,
        layers=stages,
        heads=4,
        ffn=4 * hidden,
        tie_embeddings=tied,
        dropout=dropout,
        shared_layers=shared_layers,
    )
    workload = Workload(
        name="bytes",
        transformer=model,
        global_batch=MICRO_BATCH * micro_batches,
        micro_batch=MICRO_BATCH,
        seq_len=SEQ_LEN,
        dtype="float32",
    )
    return SwarmSpec(
        workload=workload,
        first_ops=(0, *workload.boundaries[1:stages]),
        activation_codec=Codec(name=codec),
        gradient_codec=Codec(name=codec),
        averaging_codec=Codec(name=codec),
        recompute=(recompute,) * stages,
        in_flight=(in_flight,) * stages,
        rebalancing=Rebalancing(policy="none"),
        delayed_updates=delayed,
        local_steps=local_steps,
        outer=outer,
        settings=ElasticSettings(
            stages=stages,
            micro_batches=micro_batches,
            checkpoint_steps=checkpoint_steps,
            round_steps=local_steps if local_steps > 1 or outer else 0,
            **times,
        ),
        train=TrainConfig(steps=steps, warmup_steps=5, learning_rate=1e-3, clip_norm=clip_norm),
    )


@cache
def _reference(text: str) -> tuple[float, ...]:
    from hetplanner.swarm.spec import read_spec

    spec = read_spec(text)
    if spec.is_local:
        return tuple(train_local(spec, lone_paths(spec))[1])
    train = train_delayed(spec) if spec.delayed_updates else train_reference(spec.workload, spec.train)
    return tuple(train[1])


def train_delayed(spec: SwarmSpec) -> tuple[dict[str, torch.Tensor], list[float]]:
    """One process that computes step k with the weights after k - 1 updates: all weights after the last, and losses.

    It has two models, so that nothing of how a peer goes from one to the next is used.
    """
    workload, config = spec.workload, spec.train
    in_use, newest = (StageModel(workload, 0, len(workload.graph.ops), config.seed) for _ in range(2))
    batches, losses = open_batches(config, workload), []
    matrices, vectors = ([w for w in newest.parameters if (w.ndim >= 2) == big] for big in (True, False))
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=config.betas)
    for step in range(config.steps):
        loss_sum = 0.0
        for m in range(workload.num_micro_batches):
            loss = in_use.forward(None, batches.draw(step, m), RngKey(config.seed, step, m))
            (loss / workload.tokens_per_step).backward()
            loss_sum += float(loss.detach())
        losses.append(loss_sum / workload.tokens_per_step)
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(in_use.parameters, config.clip_norm)
        newest.flat_grad.copy_(in_use.flat_grad)
        in_use.flat_grad.zero_()
        in_use.flat.copy_(newest.flat)  # after as many updates as steps before this one
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        optimizer.step()
    return newest.named_weights(), losses


def reference_losses(spec: SwarmSpec) -> tuple[float, ...]:
    """Of one process, step by step; with local steps: that has one peer a stage."""
    return _reference(spec.to_json())


def engines_of(spec: SwarmSpec) -> list[StageEngine]:
    """An engine for every stage, with initial weights."""
    engines = [StageEngine(spec, torch.device("cpu")) for _ in range(spec.num_stages)]
    for stage, engine in enumerate(engines):
        engine.begin(stage, Version(0, 0))
    return engines


def tokens_of(batches: Batches, step: int, micro_batch: int) -> list[memoryview]:
    """Inputs and labels as a trainer sends them."""
    return [memoryview(t.to(torch.int32).numpy().tobytes()) for t in batches.draw(step, micro_batch)[:2]]


def run_micro_batch(
    engines: list[StageEngine], batches: Batches, step: int, micro_batch: int, nonce: int = 0
) -> list[Token]:
    """Forward and backward through all engines; returns the contributions' tokens by stage."""
    key = ("caller:1", micro_batch)
    parts = tokens_of(batches, step, micro_batch)
    for engine in engines:
        parts = [memoryview(p) for p in engine.forward(key, micro_batch, step, parts)]
    for engine in reversed(engines):
        back = engine.backward(key, Token(micro_batch, engine.stage, nonce), parts)
        assert back is not None
        parts = [memoryview(p) for p in back]
    return [Token(micro_batch, engine.stage, nonce) for engine in engines]


def undisturbed_losses(spec: SwarmSpec, engines: list[StageEngine] | None = None) -> list[float]:
    """Of one peer per stage to which nothing happens, with the spec's codecs on the boundaries."""
    engines, batches, losses = engines or engines_of(spec), open_batches(spec.train, spec.workload), []
    for step in range(spec.train.steps):
        done = [run_micro_batch(engines, batches, step, m) for m in range(spec.settings.micro_batches)]
        totals = [engine.fold([tokens[stage] for tokens in done]) for stage, engine in enumerate(engines)]
        for owner, stages in spec.tied_stages.items():
            parts = [totals[s].gradient[slice(*engines[s].model.tied[owner])] for s in stages]
            together = torch.stack(parts).sum(0)
            for part in parts:
                part.copy_(together)
        kept = [e.keep_sum(Stamp(1, step), total) for e, total in zip(engines, totals, strict=True)]
        squares = [done.grad_square or 0.0 for done in kept]
        for engine in engines:
            engine.drop()
            engine.apply(Stamp(1, step), Version(0, step + 1), math.sqrt(sum(squares)))
        losses.append(totals[-1].loss_sum / spec.workload.tokens_per_step)
    return losses


def events_of(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """The coordinator's events of a kind."""
    return [event for event in parse_events((run_dir / EVENTS_FILE).read_bytes()) if event["kind"] == kind]


def losses_of(run_dir: Path) -> list[float]:
    """Of the committed steps, in order; each step must be there once."""
    commits = events_of(run_dir, "commit")
    assert [c["version"][1] for c in commits] == list(range(1, len(commits) + 1))
    return [c["loss"] for c in commits]


def start_swarm(
    spec: SwarmSpec,
    run_dir: Path,
    peers: int = 6,
    trainers: int = 1,
    speed: float | None = 40.0,
    plant: Callable[[], None] | None = None,
    **kept: Any,
) -> Rehearsal:
    """Coordinator, trainers and peers; to be closed. `plant`: in every peer, see `Rehearsal.start_peer`."""
    rehearsal = Rehearsal(spec, run_dir, **kept)
    rehearsal.start_coordinator()
    for number in range(trainers):
        rehearsal.start_trainer(f"trainer-{number}")
    for number in range(peers):
        rehearsal.start_peer(f"peer-{number}", speed, plant)
    return rehearsal


def check_end(rehearsal: Rehearsal, tolerance: float) -> None:
    """Every step's loss is the reference's within a relative tolerance, and replicas ended equal."""
    found, wanted = losses_of(rehearsal.run_dir), reference_losses(rehearsal.spec)
    assert len(found) == len(wanted)
    assert max(abs(a - b) / b for a, b in zip(found, wanted, strict=True)) <= tolerance, (found, wanted)
    digests = events_of(rehearsal.run_dir, "digests")
    assert len(digests) == rehearsal.spec.num_stages
    assert all(d["different"] == 1 and d["replicas"] >= 1 for d in digests), digests
