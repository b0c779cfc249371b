"""Captured models in swarms: what a spec takes, and tokens that the model does not know."""

import pytest
import torch

from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.swarm.peer.engine import StageEngine
from hetplanner.swarm.spec import SwarmSpec, read_spec, spec_of
from hetplanner.workload.workload import Workload
from tests.support.models.architectures import captured
from tests.support.plans.factories import small_cluster, swarm_plan


def spec_for(workload: Workload) -> SwarmSpec:
    cut = workload.boundaries[len(workload.boundaries) // 2]
    return spec_of(swarm_plan([1, 1], [cut], workload=workload, cluster=small_cluster(2)), TrainConfig(steps=2))


def test_a_language_model_is_taken_and_its_spec_read_again() -> None:
    spec = spec_for(captured("gpt_neox"))
    assert read_spec(spec.to_json()) == spec
    assert spec.vocab == 256


@pytest.mark.parametrize("name", ["vit", "resnet", "t5", "bert (hidden tokens)"])
def test_a_model_that_learns_something_else_is_refused_with_what_works(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"takes models that learn the next token of a text; train it with a static"):
        spec_for(captured(name))


def test_a_stage_that_reads_what_it_is_not_sent_is_refused_by_number() -> None:
    workload = captured("gpt_neox")
    last = next(node for node in reversed(workload.program.nodes) if node.call == "linear.default")
    nodes = tuple(
        node.model_copy(update={"args": ({"batch": "inputs"}, *node.args[1:])}) if node is last else node
        for node in workload.program.nodes
    )
    with pytest.raises(InvalidInput, match=r"stage 1 reads the inputs; in a swarm inputs go to the first stage alone"):
        spec_for(workload.replace(program=workload.program.model_copy(update={"nodes": nodes})))


def test_a_graph_without_a_program_is_refused() -> None:
    workload = captured("gpt_neox").replace(program=None, huggingface=None)
    with pytest.raises(InvalidInput, match=r"is a captured graph without a program"):
        spec_for(workload)


def test_tokens_that_the_model_does_not_know_are_refused() -> None:
    spec = spec_for(captured("gpt_neox"))
    engine = StageEngine(spec, torch.device("cpu"))
    engine.build(0)
    size = spec.workload.micro_batch * spec.workload.seq_len
    good, bad = torch.zeros(size, dtype=torch.int32), torch.full((size,), 256, dtype=torch.int32)
    parts = [memoryview(tensor.numpy().tobytes()) for tensor in (bad, good)]
    with pytest.raises(InvalidInput, match=r"inputs: tokens must be from 0 to 255, got 256, 256"):
        engine.forward(("caller:1", 0), 0, 0, parts)
