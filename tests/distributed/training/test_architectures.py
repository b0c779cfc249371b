"""Architectures of transformers in two stages train as in one process."""

from pathlib import Path

import pytest

from tests.support.models.architectures import ARCHITECTURES, captured, losses_in_two_stages

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_stages_train_as_one_process(name: str, tmp_path: Path) -> None:
    losses, expected = losses_in_two_stages(captured(name), 20, tmp_path)
    assert len(losses) == 20
    assert losses == pytest.approx(expected, rel=1e-6)
