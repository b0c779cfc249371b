"""Conformance of every codec: size on the wire, error bounds, what is not finite."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.codecs.spec import CODEC_NAMES, Codec
from hetplanner.codecs.torch_codecs import FP16_MAX, tensor_codec

CODECS = [Codec(), Codec(name="fp16"), Codec(name="int8", block=16), Codec(name="int8", block=256)]
SIZES = (1, 15, 16, 17, 255, 256, 257, 1000, 4096)


def round_trip(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    data = torch.empty(codec.wire_bytes(x.numel(), 4), dtype=torch.uint8)
    tensor = tensor_codec(codec)
    tensor.encode(x, data)
    decoded = tensor.decode(data, x.numel())
    assert decoded.dtype == torch.float32
    assert decoded.shape == (x.numel(),)
    return decoded


def error_bound(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    """Greatest error of each element that the codec's docstring allows (float32 rounding added)."""
    if codec.name == "none":
        return torch.zeros_like(x)
    if codec.name == "fp16":
        return (x.abs() * 2.0**-11).clamp(min=2.0**-25) + (x.abs() - FP16_MAX).clamp(min=0)
    bound = torch.empty_like(x)
    for first in range(0, len(x), codec.block):
        block = x[first : first + codec.block]
        bound[first : first + codec.block] = block.abs().max() / 127 * 0.50001 + 1e-38
    return bound


def test_every_codec_has_a_tensor_half() -> None:
    assert {c.name for c in CODECS} == set(CODEC_NAMES)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_error_is_bounded(codec: Codec, size: int) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 3
    assert ((round_trip(codec, x) - x).abs() <= error_bound(codec, x)).all()


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=70),
    codec=st.sampled_from(CODECS),
)
def test_any_finite_values_stay_finite_and_close(values: list[float], codec: Codec) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    decoded = round_trip(codec, x)
    assert decoded.isfinite().all()
    assert ((decoded - x).abs() <= error_bound(codec, x) * 1.0001).all()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_zeros_and_constants_come_back_exactly(codec: Codec) -> None:
    assert torch.equal(round_trip(codec, torch.zeros(300)), torch.zeros(300))
    assert torch.allclose(round_trip(codec, torch.full((300,), -0.5)), torch.full((300,), -0.5), rtol=1e-6)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_shape_does_not_matter_and_the_input_is_left_alone(codec: Codec) -> None:
    x = torch.randn(3, 5, 40)
    before = x.clone()
    assert torch.equal(round_trip(codec, x), round_trip(codec, x.flatten()))
    assert torch.equal(x, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["none", "fp16"])
def test_dense_and_half_keep_what_is_not_finite(name: str, bad: float) -> None:
    x = torch.tensor([1.0, bad, 1e6 if name == "fp16" else 2.0])
    decoded = round_trip(Codec(name=name), x)
    assert torch.equal(decoded[:2].nan_to_num(7.0), x[:2].nan_to_num(7.0))
    assert decoded[2] == (FP16_MAX if name == "fp16" else 2.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [3, 33])
def test_int8_turns_the_block_with_it_into_nan_and_no_other(bad: float, place: int) -> None:
    x = torch.ones(40)
    x[place] = bad
    nan = round_trip(Codec(name="int8", block=16), x).isnan()
    first = place // 16 * 16
    expected = torch.zeros(40, dtype=torch.bool)
    expected[first : first + 16] = True
    assert torch.equal(nan, expected)


def test_subnormal_blocks_do_not_overflow() -> None:
    x = torch.full((16,), 1e-40)
    assert round_trip(Codec(name="int8", block=16), x).abs().max() <= 1.1e-40
