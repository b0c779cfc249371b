"""What members divide of a captured model, and what a division refuses."""

from contextlib import suppress
from typing import Any

import pytest
from torch import nn

from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.workload.capturing.dividing import divide
from hetplanner.workload.tensor_degrees import why_not
from tests.support.models.architectures import captured
from tests.support.models.divided_models import (
    Compared,
    Framed,
    OddWords,
    ReadElsewhere,
    ScaledTwice,
    Sliced,
    Thirds,
    Tied,
    made,
)  # fmt: skip
from tests.support.plans.factories import chain_plan
from tests.support.plans.grouped import in_groups

WHOLE = ("norm.weight", "norm.bias", "down.bias")


@pytest.mark.parametrize(
    ("kind", "whole", "blocks"),
    [
        (Framed, {*WHOLE}, {"up.weight": (0, (32,)), "down.weight": (1, (32,)), "head.weight": (0, (64,))}),
        (Thirds, {*WHOLE, "out.bias"}, {"qkv.weight": (0, (16, 16, 16)), "qkv.bias": (0, (16, 16, 16))}),
        (Sliced, {*WHOLE, "scale", "shift"}, {"both.weight": (0, (32, 32)), "both.bias": (0, (32, 32))}),
        (OddWords, {*WHOLE}, {"table.weight": (0, (67,)), "head.weight": (0, (67,))}),
        (Tied, {*WHOLE}, {"table.weight": (0, (67,))}),
        (ScaledTwice, {*WHOLE}, {"up.weight": (0, (32,))}),
    ],
)
def test_weights_are_divided_as_the_calls_allow(
    kind: type[nn.Module], whole: set[str], blocks: dict[str, tuple[int, tuple[int, ...]]]
) -> None:
    program = made(kind).program
    division = divide(program, 4)
    assert program.parameters.keys() - division.weights.keys() == whole
    assert {name: division.weights[name] for name in blocks} == blocks


def test_a_weight_that_another_call_reads_is_whole() -> None:
    assert not {"up.weight", "up.bias"} & divide(made(ReadElsewhere).program, 2).weights.keys()


def test_a_product_whose_columns_are_compared_stays_whole() -> None:
    assert "up.weight" not in divide(made(Compared).program, 2).weights


def test_gradients_of_norms_are_added_up_once_a_step_where_all_their_uses_are_by_tokens() -> None:
    assert {"norm.weight", "norm.bias", "down.bias"} <= divide(made(Framed).program, 2).partial
    twice = divide(made(ScaledTwice).program, 2)
    assert not {"norm.weight", "norm.bias"} & twice.partial
    assert "enter" in {step.kind for step in twice.steps.values()}


def test_tokens_that_cannot_be_divided_stay_whole() -> None:
    kinds = {step.kind for step in divide(captured("vit").program, 2).steps.values()}
    assert kinds == {"enter", "sum", "loss"}


def test_a_model_of_convolutions_is_refused_with_what_works() -> None:
    why = why_not(captured("resnet"), 2)
    assert "100% of its arithmetic is not divided" in why
    assert "use degree 1, or sharding zero2 or zero3" in why


def test_a_plan_says_how_much_is_not_divided() -> None:
    single = chain_plan([4], [], workload=captured("falcon"))
    (note,) = (note for note in estimate_plan(in_groups(single, [2])).notes if "of 2" in note)
    assert note.startswith("in groups of 2, 13% of the arithmetic is not divided, most of it in 'transformer.h.")
    assert not any("of 2" in note for note in estimate_plan(in_groups(single, [2], "zero3")).notes)


@pytest.mark.parametrize("args", [(), (None,), ("x", "y"), ({"batch": "inputs"}, 0, 0), ([], [], []), (0, -1, 10**12)])
def test_arguments_of_a_strangers_file_end_in_an_error_or_a_division(args: tuple[Any, ...]) -> None:
    program = captured("gpt2").program
    for i, node in enumerate(program.nodes):
        nodes = (*program.nodes[:i], node.model_copy(update={"args": args}), *program.nodes[i + 1 :])
        with suppress(InvalidInput):  # any other error fails
            divide(program.model_copy(update={"nodes": nodes}), 2)


def test_the_error_names_the_call() -> None:
    program = captured("gpt2").program
    (place,) = (i for i, node in enumerate(program.nodes) if node.name == "split")
    split = program.nodes[place].model_copy(update={"args": ({"node": "view_2"},)})
    nodes = (*program.nodes[:place], split, *program.nodes[place + 1 :])
    with pytest.raises(InvalidInput, match=r"^program\.nodes \(split\): split\.Tensor has arguments that it does not"):
        divide(program.model_copy(update={"nodes": nodes}), 2)
