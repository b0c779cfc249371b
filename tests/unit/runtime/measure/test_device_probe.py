"""How long one device is measured, and where that ends."""

import time
from collections.abc import Callable

import pytest
import torch

from hetplanner.errors import RunError
from hetplanner.hosts.probe import devices
from hetplanner.runtime.measure import device_probe


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], set[int]]:
    """Which matrices are multiplied where one product of small ones takes so many seconds."""

    def found(seconds: float) -> set[int]:
        seen = set()

        def product(left: torch.Tensor, right: torch.Tensor) -> None:
            seen.add(len(left))
            time.sleep(seconds)

        monkeypatch.setattr(device_probe.torch, "mm", product)
        device_probe.product_flops_per_s(torch.device("cpu"), "float16")
        return seen

    monkeypatch.setattr(device_probe, "WINDOW_S", 0.2)
    return found


def test_a_number_format_that_is_emulated_is_measured_with_small_matrices(sizes: Callable[[float], set[int]]) -> None:
    small, large = device_probe.SLOW_PRODUCT["cpu"], device_probe.PRODUCT["cpu"]
    assert sizes(0.02) == {small}
    assert sizes(0.0) == {small, large}


def test_a_device_that_does_not_answer_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "MEASURE_S", 0.05)
    with pytest.raises(RunError, match=r"its devices were not measured within 0\.05 s"):
        devices.measure_devices(2)
