"""How long one device is measured, and where that ends."""

from collections.abc import Callable

import pytest
import torch

from hetplanner.errors import RunError
from hetplanner.hosts.probe import devices
from hetplanner.runtime.measure import device_probe


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[int]]:
    """Rows of the matrices that are multiplied, in order, when one product takes so many seconds."""

    def found(seconds: float) -> list[int]:
        seen: list[int] = []

        def each_s(device: torch.device, act: Callable[[], torch.Tensor], window_s: float) -> float:
            seen.append(len(act()))
            return seconds

        monkeypatch.setattr(device_probe, "_each_s", each_s)
        device_probe.product_flops_per_s(torch.device("cpu"), "float16")
        return seen

    return found


def test_a_number_format_that_is_emulated_is_measured_with_small_matrices(sizes: Callable[[float], list[int]]) -> None:
    small, large = device_probe.SLOW_PRODUCT["cpu"], device_probe.PRODUCT["cpu"]
    a_window_s = device_probe.WINDOW_S / device_probe.LEAST_RUNS * (small / large) ** 3
    assert sizes(1.1 * a_window_s) == [small, small]
    assert sizes(0.9 * a_window_s) == [small, large]


def test_a_device_that_does_not_answer_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "MEASURE_S", 0.05)
    with pytest.raises(RunError, match=r"its devices were not measured within 0\.05 s"):
        devices.measure_devices(2)
