"""Architectures of transformers in two stages train as in one process; those that no config captures say why."""

from pathlib import Path

import pytest

from hetplanner.capture.huggingface import config_factory
from hetplanner.errors import InvalidInput
from tests.architectures import ARCHITECTURES, captured, losses_in_two_stages

pytestmark = pytest.mark.distributed

REFUSED = {"t5": "no causal language model or image classifier; write a factory"}


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in REFUSED])
def test_two_stages_train_as_one_process(name: str, tmp_path: Path) -> None:
    losses, expected = losses_in_two_stages(captured(name), 20, tmp_path)
    assert len(losses) == 20
    assert losses == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("name", "words"), REFUSED.items())
def test_what_is_not_captured_says_why(name: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        captured(name)


def test_a_bidirectional_model_does_not_learn_to_predict_what_it_sees() -> None:
    fields = ARCHITECTURES["bert"] | {"model_type": "bert", "is_decoder": False}
    with pytest.raises(InvalidInput, match=r'bert is bidirectional: .*; add "is_decoder": true'):
        config_factory(fields, "config.json", seq_len=16)()
