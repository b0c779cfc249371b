"""Which device of a host computes, by its name and turn."""

import subprocess
import sys

import pytest
import torch

from hetplanner.cluster.catalog import is_processor
from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.device import named_device
from tests.support.processes.patience import HANG_S


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize(
    ("name", "turn", "found"),
    [
        ("cpu", 1, "cpu"),
        ("cuda", 0, "cuda:0"),
        ("cuda", 5, "cuda:1"),
        ("auto", 2, "cuda:0"),
        ("cuda:1", 0, "cuda:1"),
    ],
)
def test_gpus_are_taken_in_turn_unless_one_is_named(two_gpus, name, turn, found):
    assert str(named_device(name, turn)) == found


def test_a_gpu_that_is_not_there_is_refused(two_gpus):
    with pytest.raises(InvalidInput, match=r"device: must be cuda:0 to cuda:1 on .*, got cuda:2"):
        named_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:", "cuda:-1", "cuda:1:2", "cpu:0", "cuda:99999", "mps"])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(InvalidInput, match="must be auto, cpu, cuda or cuda:N"):
        named_device(name)


def test_without_a_gpu_auto_is_the_processor_and_cuda_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert named_device("auto").type == "cpu"
    for name in ("cuda", "cuda:0"):
        with pytest.raises(InvalidInput, match=r"torch sees no GPU.*CUDA_VISIBLE_DEVICES"):
            named_device(name)


def test_a_peer_on_a_device_that_is_none_ends_before_it_asks_anybody():
    command = [sys.executable, "-m", "hetplanner.cli", "peer", "join", "127.0.0.1:1", "--device", "gpu"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANG_S)
    assert ended.returncode == InvalidInput.exit_code
    assert "device: must be auto, cpu, cuda or cuda:N, got 'gpu'" in ended.stderr


def test_auto_takes_no_gpu_where_the_plan_has_a_processor():
    auto, asked = TrainConfig(), TrainConfig(device="cuda")
    assert [auto.device_for(kind) for kind in ("CPU generic", "A100-80", "nobody knows it")] == ["cpu", "auto", "auto"]
    assert asked.device_for("CPU generic") == "cuda"


def test_processors_are_told_from_gpus():
    assert is_processor("CPU generic")
    assert not is_processor("A100-80")
    assert not is_processor("nobody knows it")
