"""A captured program for fewer samples, and what keeps devices from dividing them."""

import json
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hetplanner.capture.assemble import capture_workload
from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.capturing.samples import for_samples
from hetplanner.workload.files import workload_from_json, workload_to_data
from hetplanner.workload.program import PerSample
from hetplanner.workload.tensor_degrees import why_not
from hetplanner.workload.workload import Workload
from tests.support.models.architectures import captured
from tests.support.models.captured_models import conv_net


class Plain(nn.Module):
    """Logits of tokens; subclasses compute something else on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.between(self.table(tokens)))

    def between(self, x: Tensor) -> Tensor:
        return x


class Centred(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Compared(Plain):
    def between(self, x: Tensor) -> Tensor:
        return torch.einsum("atc,btc->abt", x, x).softmax(1).permute(0, 2, 1) @ x.mean(1)


class Noisy(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class TokensInFront(Plain):
    def between(self, x: Tensor) -> Tensor:
        return torch.relu(self.head(x.transpose(0, 1)) @ self.head.weight).transpose(0, 1)


class MeanLoss(Plain):
    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = super().forward(tokens)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten() if labels is None else labels.flatten())


def made(kind: type[nn.Module], samples: int = 4) -> Workload:
    tokens = torch.zeros(samples, 5, dtype=torch.int64)
    return capture_workload(lambda: (kind(), (tokens, tokens) if kind is MeanLoss else tokens), "mine")


@pytest.mark.parametrize("kind", [Plain, TokensInFront])
def test_a_program_for_other_samples_is_that_of_a_capture_with_them(kind: type[nn.Module]) -> None:
    of = {samples: made(kind, samples).program for samples in (1, 3, 4)}
    for program, (samples, wanted) in product(of.values(), of.items()):
        found = for_samples(program, samples)
        assert found.nodes == wanted.nodes
        assert (found.inputs, found.labels, found.micro_batch) == (wanted.inputs, wanted.labels, samples)
    assert for_samples(wanted, 4) is wanted


def test_losses_do_not_depend_on_the_size_of_micro_batches() -> None:
    workload, config = captured("gpt_neox"), TrainConfig(steps=3)
    _, losses = train_reference(workload, config)
    for samples in (1, 4, 8):
        assert train_reference(workload.with_micro_batch(samples), config)[1] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Centred, r"mean\.dim of .* \(mean\) computes with several samples at once"),
        (Compared, r"compares samples with one another"),
        (Noisy, r"rand_like\.default of .* draws for all samples at once"),
        (TokensInFront, r"goes from one operator to the next and its samples are not in front"),
        (MeanLoss, r"cross_entropy_loss\.default of .* computes with several samples at once"),
    ],
)
def test_models_whose_samples_cannot_be_divided_say_where(kind: type[nn.Module], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert not why_not(made(kind), 2, "zero3"), why_not(made(kind), 2, "zero3")


def test_statistics_one_sample_and_old_captures_are_refused_and_the_rest_is_not() -> None:
    assert "batch_norm.default of 1.norm (batch_norm) takes statistics" in why_not(
        capture_workload(conv_net, "images"), 2, "zero2"
    )
    assert "1 sample of a micro-batch cannot be divided by 2" in why_not(made(Plain, 1), 2, "zero3")
    old = made(Plain)
    old = old.replace(program=old.program.replace(per_sample=None))
    assert "does not tell its calls for other samples; capture it with --micro-batch 2 or more; use" in why_not(
        old, 2, "zero3"
    )
    with pytest.raises(InvalidInput, match=r"micro_batch must be 4, for which the model was captured, got 2"):
        old.with_micro_batch(2)
    assert why_not(made(Plain), 4, "zero3") == ""
    assert "4 samples of a micro-batch cannot be divided by 8" in why_not(made(Plain), 8, "zero2")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("args", 0, "node"), "must be a number that stays from 0"),
        (("args", 9), "names no number of the call"),
        (("kwargs", "no", 0), "names no number of the call"),
        (("elsewhere", 0), "names no number of the call"),
        (("shape", 1), "must be a number that stays from 0"),
    ],
)
def test_places_of_a_strangers_file_that_hold_no_number_are_refused(place: tuple[int | str, ...], message: str) -> None:
    program = captured("gpt_neox").program
    node = next(node for node in program.nodes if node.call == "linear.default")
    bad = program.replace(per_sample={node.name: (PerSample(place=place, each=1000),)})
    with pytest.raises(InvalidInput, match=message):
        for_samples(bad, 1)


def test_a_file_whose_numbers_are_not_where_it_says_is_refused() -> None:
    data = workload_to_data(made(Plain))
    for numbers, message in (
        ({"nobody": [{"place": ["args", 0], "each": 1}]}, "program.per_sample: there is no call 'nobody'"),
        ({"linear": [{"place": ["args", 0, "node"], "each": 1}]}, r"linear: args\.0\.node: must be a number"),
        ({"linear": [{"place": ["args"], "each": 1}]}, r"per_sample\.linear.*place"),
    ):
        data["program"]["per_sample"] = numbers
        with pytest.raises(InvalidInput, match=message):
            workload_from_json(json.dumps(data), "w.json")
