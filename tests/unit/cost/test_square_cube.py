"""The square-cube law by the cost model."""

import pytest

from hetplanner.codecs.spec import Codec
from hetplanner.cost.square_cube import square_cube_law
from hetplanner.errors import InvalidInput

GIGABIT = 125e6


def test_bytes_grow_with_the_width_and_compute_faster():
    one, two = square_cube_law((2048, 4096), (GIGABIT,))
    assert one.transfer_s == 2 * 512 * 2048 * 2 / GIGABIT  # activation and gradient in fp16
    assert two.transfer_s == 2 * one.transfer_s
    assert 3.0 < two.compute_s / one.compute_s < 4.0
    assert two.utilisation > one.utilisation


def test_compute_is_the_cost_model_s():
    """A T4 at its assumed share of 65 TFLOP/s: 24 bsh² + 2 bs²h FLOPs forward (causal), three times that in all."""
    (point,) = square_cube_law((4096,), (GIGABIT,))
    flops = 3 * (24 * 512 * 4096**2 + 2 * 512 * 512 * 4096)
    assert point.compute_s == pytest.approx(flops / (65e12 * 0.45), rel=0.15)


def test_more_layers_and_codecs_and_networks_help_as_they_should():
    base, wide = square_cube_law((1024,), (GIGABIT, 10 * GIGABIT))
    assert wide.transfer_s == pytest.approx(base.transfer_s / 10)
    (deep,) = square_cube_law((1024,), (GIGABIT,), layers=3)
    assert deep.compute_s == pytest.approx(3 * base.compute_s)
    assert deep.transfer_s == base.transfer_s
    (small,) = square_cube_law((1024,), (GIGABIT,), codec=Codec(name="int8"))
    assert small.transfer_s == pytest.approx(base.transfer_s * (1 + 4 / 256) / 2)
    (again,) = square_cube_law((1024,), (GIGABIT,), recompute=True)
    assert 1.3 * base.compute_s < again.compute_s < 1.4 * base.compute_s


def test_a_device_that_waits_for_nothing_is_fully_used():
    (point,) = square_cube_law((8192,), (1e15,))
    assert point.utilisation == 1.0


def test_impossible_settings_are_refused():
    with pytest.raises(InvalidInput, match="multiple of 64, got 100"):
        square_cube_law((100,))
    with pytest.raises(InvalidInput, match="bandwidth_bytes_per_s"):
        square_cube_law((64,), (0.0,))
    with pytest.raises(InvalidInput):
        square_cube_law((64,), device="no such device")
