"""The next token by a captured language model, whose program has one length and one micro-batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from hetplanner.errors import InvalidInput
from hetplanner.runtime.model.captured import ProgramStage
from hetplanner.workload.program import Program
from hetplanner.workload.workload import Workload


def captured_predictor(stage: ProgramStage, workload: Workload) -> tuple[Callable[[list[int]], Tensor], int]:
    """Logits of the next token behind some tokens, and how many tokens the model can see.

    The text is put in front and the rest filled up; in a causal model what follows a token does not matter.

    Args:
        stage: the whole model.
        workload: what it is of.

    Raises:
        InvalidInput: its inputs are no tokens, its loss is no cross-entropy of one row of logits per token, or what
            follows a token matters.
    """
    assert workload.program is not None
    (B, T), node = _shape(workload), _logits_node(workload.program)
    if node is None:
        raise InvalidInput(
            f"sample: {workload.name} has no logits of {B} x {T} tokens in front of a cross-entropy; only models that"
            " predict the next token can continue a text"
        )

    def logits_TV(text: list[int], filler: int) -> Tensor:
        tokens_BT = torch.full((B, T), filler)
        tokens_BT[0, : len(text)] = torch.tensor(text)
        found: Tensor = stage.value_of(node, (tokens_BT, torch.zeros(B, T, dtype=torch.int64)))
        return found.reshape(B, T, -1)[0]

    probe = [10, 32]
    if T > 2 and not torch.allclose(logits_TV(probe, 0)[:2], logits_TV(probe, 1)[:2], atol=1e-3):
        raise InvalidInput(f"sample: in {workload.name} a token sees those behind it, so it cannot continue a text")
    return lambda text: logits_TV(text, 0)[len(text) - 1], T


def _shape(workload: Workload) -> tuple[int, int]:
    program = workload.program
    assert program is not None
    if not workload.reads_tokens or program.labels != program.inputs:
        raise InvalidInput(f"sample: {workload.name} reads {list(program.inputs)} of {program.inputs_dtype}, not text")
    return program.inputs[0], program.inputs[1]


def _logits_node(program: Program) -> str | None:
    """What the loss compares with the labels: one row of logits for every token."""
    loss = next(node for node in program.nodes if node.name == program.loss)
    if loss.call != "cross_entropy_loss.default" or not isinstance(loss.args[0], dict):
        return None
    name = str(loss.args[0].get("node"))
    rows = program.shape_of.get(name, ())
    tokens = program.inputs[0] * program.inputs[1]
    return name if len(rows) == 2 and rows[0] == tokens and rows[1] >= 256 else None
