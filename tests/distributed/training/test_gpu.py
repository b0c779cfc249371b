"""On GPUs the same losses as in one process: stages on streams, gloo through pinned memory, nccl with a GPU a rank."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.profiles.measuring import measured_profile
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import open_batches
from hetplanner.runtime.train.reference import train_reference
from hetplanner.swarm.launch.rehearsal import Rehearsal
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, sharded, small_cluster, tiny_workload
from tests.support.plans.grouped import in_groups
from tests.support.swarms.swarm_runs import check_end, small_spec
from tests.support.training.real_ranks import Ranks, train

NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_GPUS == 0, reason="torch sees no CUDA device here"),
]

STEPS = 10
SLACK_S = 1e-3
"""By which a GPU's clock and the processor's may differ within a step."""


def trained(plan: Plan, tmp_path: Path) -> Ranks:
    """A run on GPUs whose losses are those of one process on the processor."""
    config = TrainConfig(steps=STEPS, seed=3, learning_rate=3e-3, clip_norm=0.5, device="cuda")
    _, expected = train_reference(plan.problem.workload, config)
    ranks = train(plan, config, tmp_path)
    bound = 5e-4 if plan.problem.workload.dtype == "float32" else 0.05
    assert max(abs(a - b) for a, b in zip(ranks.losses(), expected, strict=True)) < bound
    return ranks


def messages(ranks: Ranks) -> set[str]:
    return {line["messages"] for line in ranks.all_lines("profile")}


def workload(dtype: str = "float32") -> Workload:
    return tiny_workload(global_batch=16).replace(dtype=dtype)


def test_stages_of_one_process_on_streams_of_their_own_equal_the_processor() -> None:
    w, key = workload(), RngKey(0, 0, 0)
    batches = open_batches(TrainConfig(), w)
    gradients = []
    for device in (torch.device("cpu"), torch.device("cuda", 0)):
        edges = (0, 4, 8, len(w.graph.ops))
        models = [StageModel(w, a, b, 0, device) for a, b in pairwise(edges)]
        runners = [StageRunner(model) for model in models]
        streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in models]
        for m in range(4):
            batch = batches.draw(0, m).to(device)
            x = None
            for i, runner in enumerate(runners):
                with torch.cuda.stream(streams[i]):
                    _follow(streams[i], streams[i - 1] if i else None, x)
                    x = runner.forward(m, x, batch, key)
            gradient = None
            for i in reversed(range(len(runners))):
                with torch.cuda.stream(streams[i]):
                    _follow(streams[i], streams[i + 1] if i + 1 < len(runners) else None, gradient)
                    gradient = runners[i].backward(m, gradient)
        if device.type == "cuda":
            torch.cuda.synchronize()
        gradients.append(torch.cat([model.flat_grad.cpu() for model in models]))
    assert torch.allclose(*gradients, rtol=1e-3, atol=1e-4)


def _follow(stream: torch.cuda.Stream | None, other: torch.cuda.Stream | None, tensor: torch.Tensor | None) -> None:
    if stream is not None and other is not None and tensor is not None:
        stream.wait_stream(other)
        tensor.record_stream(stream)


@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16", "float16"])
def test_two_ranks_on_one_gpu_go_through_pinned_memory(dtype: str, tmp_path: Path) -> None:
    plan = chain_plan([8], [5], cluster=small_cluster(2), workload=workload(dtype))
    if NUM_GPUS > 1:
        pytest.skip("every rank has a GPU of its own here; the test of nccl runs")
    assert messages(trained(plan, tmp_path)) == {"gloo"}


@pytest.mark.skipif(NUM_GPUS < 2, reason="nccl needs a GPU for each of two ranks; it is not exercised here")
@pytest.mark.parametrize("shape", ["2x1", "1x2"])
def test_a_gpu_for_every_rank_speaks_nccl(shape: str, tmp_path: Path) -> None:
    shares, cuts = ([8], [5]) if shape == "2x1" else ([5, 3], [])
    plan = chain_plan(shares, cuts, cluster=small_cluster(2), workload=workload())
    assert messages(trained(plan, tmp_path)) == {"nccl"}


def test_spans_are_when_the_gpu_computes_not_when_it_is_asked_to(tmp_path: Path) -> None:
    ranks = trained(chain_plan([8], [], cluster=small_cluster(1), workload=workload()), tmp_path)
    steps = {line["step"]: line for line in ranks.lines(0, "step")}
    spans = ranks.lines(0, "span")
    assert {span["kind"] for span in spans} == {"forward", "backward", "step"}
    for span in spans:
        step = steps[span["step"]]
        assert step["start_s"] - SLACK_S < span["start_s"] <= span["end_s"] < step["end_s"] + SLACK_S
    for one, two in pairwise(spans):
        assert one["end_s"] < two["start_s"] + SLACK_S, "one stream does one after the other"


@pytest.mark.parametrize("degrees", [[2, 2], [2, 1]])
def test_devices_of_a_group_share_layers_on_one_gpu_or_several(degrees: list[int], tmp_path: Path) -> None:
    trained(in_groups(chain_plan([4, 4], [], workload=workload()), degrees), tmp_path)


def test_replicas_divide_the_optimizers_states_on_one_gpu_or_several(tmp_path: Path) -> None:
    trained(sharded(chain_plan([4, 4], [5], workload=workload())), tmp_path)


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_a_swarm_averages_by_nccl_where_every_peer_of_a_stage_has_a_gpu(codec: str, tmp_path: Path) -> None:
    spec = small_spec(steps=8, micro_batches=8, stages=1, codec=codec)
    with Rehearsal(spec, tmp_path) as rehearsal:
        rehearsal.start_coordinator()
        rehearsal.start_trainer("trainer-0")
        for name in ("a", "b"):
            rehearsal.start_peer(name, speed=40.0, device="cuda")
        rehearsal.wait(120)
    check_end(rehearsal, 5e-4 if codec == "none" else 0.02)
    carrier = "nccl" if NUM_GPUS > 1 else "gloo"
    assert f"averaging: a group of 2 by {carrier}" in (tmp_path / "log-of-a.txt").read_text()


def test_a_profile_of_the_gpu_says_its_kind_and_keeps_what_the_model_keeps() -> None:
    w = workload("bfloat16")
    profile = measured_profile(w, [w.micro_batch], device="cuda", window_s=0.2)
    (kind,) = profile.kinds
    assert kind != "CPU generic"
    assert "CUDA" in profile.source
    block = profile.costs[kind, 1, w.micro_batch]["block"]
    kept = sum(op.activation_bytes for op in w.graph.ops if op.layer == 0) * w.micro_batch
    assert block.forward > 0
    assert 0.8 <= block.kept / kept <= 1.3
