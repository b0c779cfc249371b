"""Conformance of every codec: size on the wire, error bounds, what is not finite."""

import contextlib

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hetplanner.codecs.adatopk import adatopk_reductions
from hetplanner.codecs.spec import CODEC_NAMES, SEGMENT, Codec, most_kept, position_bytes, topk_of
from hetplanner.codecs.torch_codecs import AtPositions, TopK, tensor_codec
from hetplanner.codecs.torch_topk import SAMPLES

MOST = {"fp16": 65504.0, "bf16": torch.finfo(torch.bfloat16).max}
TOPK = [Codec(name="topk", ratio=r) for r in (1.0, 3.0, 10.0, 1000.0)]
BLOCKS = [Codec(name=name, block=block) for name in ("int8", "int4") for block in (16, 256)]
CODECS = [Codec(), Codec(name="fp16"), Codec(name="bf16"), *BLOCKS, *TOPK]
SIZES = (1, 2, 15, 16, 17, 255, 256, 257, 1000, 4096, SEGMENT - 1, SEGMENT, SEGMENT + 3)
ODD_BLOCKS = [Codec(name=name, block=17) for name in ("int8", "int4")]


def encoded(codec: Codec, x: torch.Tensor, *, compiled: bool = True, filler: int = 0) -> torch.Tensor:
    data = torch.full((codec.wire_bytes(x.numel(), 4),), filler, dtype=torch.uint8, device=x.device)
    tensor_codec(codec, compiled=compiled).encode(x, data)
    return data


def round_trip(codec: Codec, x: torch.Tensor, *, compiled: bool = True) -> torch.Tensor:
    decoded = tensor_codec(codec, compiled=compiled).decode(encoded(codec, x, compiled=compiled), x.numel())
    assert decoded.dtype == torch.float32
    assert decoded.shape == (x.numel(),)
    return decoded


def half_error(x: torch.Tensor) -> torch.Tensor:
    return (x.abs() * 2.0**-11).clamp(min=2.0**-25) + (x.abs() - MOST["fp16"]).clamp(min=0)


def error_bound(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    """Greatest error of each element that the codec's docstring allows (float32 rounding added)."""
    if codec.name == "none":
        return torch.zeros_like(x)
    if codec.name == "fp16":
        return half_error(x)
    if codec.name == "bf16":
        return x.abs() * 2.0**-8 + 1e-40
    if codec.name == "topk":
        kept = torch.zeros(len(x), dtype=torch.bool)
        order = sorted(range(len(x)), key=lambda i: (-abs(float(x[i])), i)) if len(x) < 5000 else None
        chosen = order or x.abs().argsort(descending=True, stable=True).tolist()
        kept[chosen[: codec.kept(len(x))]] = True
        return torch.where(kept, half_error(x), x.abs())
    levels = 127 if codec.name == "int8" else 7
    bound = torch.empty_like(x)
    for first in range(0, len(x), codec.block):
        block = x[first : first + codec.block]
        bound[first : first + codec.block] = block.abs().max() / levels * 0.50001 + 1e-42
    return bound


def test_every_codec_has_a_tensor_half() -> None:
    assert {c.name for c in CODECS} == set(CODEC_NAMES)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_byte_of_the_declared_size_is_written(codec: Codec, size: int) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(size))
    for compiled in (True, False):
        assert torch.equal(*(encoded(codec, x, compiled=compiled, filler=filler) for filler in (0, 255)))


def odd_values(size: int) -> torch.Tensor:
    """Magnitudes of every order, many of them equal, zeros of both signs, blocks of zeros, and what is not finite."""
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, generator=generator) * 10.0 ** torch.randint(-42, 38, (size,), generator=generator)
    x[torch.rand(size, generator=generator) < 0.3] = -0.5
    x[::7], x[size // 4 : size // 2] = -0.0, 0.0
    x[size // 2 :: 97] = torch.tensor([float("nan"), float("inf"), -float("inf"), 7e4])[size % 4]
    return x


def check_equal_bytes(codec: Codec, size: int, device: str) -> None:
    """Tensor operations on a device give what compiled loops do, both ways."""
    for x in (odd_values(size), torch.randn(size, generator=torch.Generator().manual_seed(size))):
        data = encoded(codec, x)
        other = encoded(codec, x.to(device), compiled=False)
        if codec.name in MOST and x.isnan().any():  # how a NaN is written is the processor's own affair
            assert torch.equal(*(half_view(codec, d.cpu()).nan_to_num(7.0) for d in (data, other)))
        else:
            assert torch.equal(data, other.cpu())
        decoded = tensor_codec(codec, compiled=False).decode(other, size)
        assert decoded.device.type == device
        here = tensor_codec(codec).decode(data, size)
        assert torch.equal(here.nan_to_num(7.0), decoded.cpu().nan_to_num(7.0))


@pytest.mark.parametrize("codec", CODECS + ODD_BLOCKS, ids=str)
@pytest.mark.parametrize("size", [*SIZES, 3 * SEGMENT + 1])
def test_tensor_operations_give_the_bytes_of_compiled_loops(codec: Codec, size: int) -> None:
    check_equal_bytes(codec, size, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("codec", CODECS + ODD_BLOCKS, ids=str)
def test_a_gpu_gives_the_bytes_of_the_processor(codec: Codec) -> None:
    for size in (*SIZES, 3 * SEGMENT + 1):
        check_equal_bytes(codec, size, "cuda")


def half_view(codec: Codec, data: torch.Tensor) -> torch.Tensor:
    return data.view(torch.float16 if codec.name == "fp16" else torch.bfloat16)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_error_is_bounded(codec: Codec, size: int) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 3
    assert ((round_trip(codec, x) - x).abs() <= error_bound(codec, x)).all()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_an_empty_tensor_travels(codec: Codec) -> None:
    assert codec.wire_bytes(0, 4) == 0
    assert round_trip(codec, torch.empty(0)).shape == (0,)


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=70),
    codec=st.sampled_from(CODECS),
)
@example(values=[2.0**-126], codec=Codec(name="int8"))
@example(values=[3e-37, 1e-38], codec=Codec(name="int4"))
def test_any_finite_values_stay_finite_and_close(values: list[float], codec: Codec) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    decoded = round_trip(codec, x)
    assert decoded.isfinite().all()
    assert ((decoded - x).abs() <= error_bound(codec, x) * 1.0001).all()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_zeros_and_constants_come_back_exactly(codec: Codec) -> None:
    assert torch.equal(round_trip(codec, torch.zeros(300)), torch.zeros(300))
    kept = codec.kept(300) if codec.name == "topk" else 300
    expected = torch.where(torch.arange(300) < kept, -0.5, 0.0)
    assert torch.allclose(round_trip(codec, torch.full((300,), -0.5)), expected, rtol=1e-6)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_shape_does_not_matter_and_the_input_is_left_alone(codec: Codec) -> None:
    x = torch.randn(3, 5, 40)
    before = x.clone()
    assert torch.equal(round_trip(codec, x), round_trip(codec, x.flatten()))
    assert torch.equal(x, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_dense_and_half_keep_what_is_not_finite(name: str, bad: float) -> None:
    x = torch.tensor([1.0, bad, 3.4e38 if name in MOST else 2.0])
    decoded = round_trip(Codec(name=name), x)
    assert torch.equal(decoded[:2].nan_to_num(7.0), x[:2].nan_to_num(7.0))
    assert decoded[2] == MOST.get(name, 2.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [3, 33])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_blocks_turn_the_block_with_it_into_nan_and_no_other(name: str, bad: float, place: int) -> None:
    x = torch.ones(40)
    x[place] = bad
    nan = round_trip(Codec(name=name, block=16), x).isnan()
    first = place // 16 * 16
    expected = torch.zeros(40, dtype=torch.bool)
    expected[first : first + 16] = True
    assert torch.equal(nan, expected)


@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 17, 39])
def test_topk_keeps_what_is_not_finite(bad: float, place: int) -> None:
    x = torch.full((40,), 1e30)
    x[place] = bad
    decoded = round_trip(Codec(name="topk", ratio=40.0), x)
    assert torch.equal(decoded[place].nan_to_num(7.0), x[place].nan_to_num(7.0))
    assert decoded.count_nonzero() == 1


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_subnormal_blocks_do_not_overflow(name: str) -> None:
    x = torch.full((16,), 1e-40)
    assert round_trip(Codec(name=name, block=16), x).abs().max() <= 1.1e-40


@pytest.mark.parametrize(
    ("size", "ratio", "form"),
    [(4096, 3.0, "bitmap"), (4096, 100.0, "narrow"), (3 * SEGMENT, 100.0, "narrow"), (3 * SEGMENT, 1e5, "wide")],
)
def test_positions_take_the_shortest_form_and_say_what_was_kept(size: int, ratio: float, form: str) -> None:
    codec = Codec(name="topk", ratio=ratio)
    sizes = position_bytes(size, codec.kept(size))
    assert getattr(sizes, form) == min(sizes)
    x = torch.randn(size, generator=torch.Generator().manual_seed(1))
    x[-1] = 100.0
    data = torch.empty(codec.wire_bytes(size, 4), dtype=torch.uint8)
    sender, receiver = TopK(codec), TopK(codec)
    sender.encode(x, data)
    decoded = receiver.decode(data, size)
    kept = x.abs().argsort(descending=True)[: codec.kept(size)].sort().values
    assert torch.equal(sender.position_M, kept)
    assert torch.equal(receiver.position_M, kept)
    assert torch.equal(decoded.nonzero()[:, 0], kept)
    assert torch.equal(decoded[kept], x[kept].half().float())


LONG = 2 * SAMPLES + 5
STRIPES = torch.where(torch.arange(LONG) % 64 == 0, 100.0, 1.0) + torch.arange(LONG) / LONG


@pytest.mark.parametrize("ratio", [1.5, 3.0, 30.0, 1000.0, 1e5])
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(LONG, generator=torch.Generator().manual_seed(3)),
        torch.randn(LONG, generator=torch.Generator().manual_seed(3)).relu(),
        torch.randint(-3, 4, (LONG,), generator=torch.Generator().manual_seed(3)).float(),
        torch.arange(LONG).float(),
        STRIPES,
        torch.zeros(LONG),
    ],
    ids=["normal", "rectified", "equal", "sorted", "stripes", "zeros"],
)
def test_topk_keeps_the_largest_whatever_a_sample_of_a_long_tensor_says(x: torch.Tensor, ratio: float) -> None:
    codec = Codec(name="topk", ratio=ratio)
    one, other = TopK(codec), TopK(codec, compiled=False)
    for tensor in (one, other):
        tensor.encode(x, torch.empty(codec.wire_bytes(LONG, 4), dtype=torch.uint8))
    assert torch.equal(one.position_M, other.position_M)
    assert torch.equal(one.position_M, x.abs().sort(descending=True, stable=True).indices[: codec.kept(LONG)].sort()[0])


@pytest.mark.parametrize("ratio", [3.0, 100.0, 1e5])
def test_topk_does_not_write_outside_of_a_tensor_whatever_arrives(ratio: float) -> None:
    size, codec = 3 * SEGMENT + 5, Codec(name="topk", ratio=ratio)
    data = torch.full((codec.wire_bytes(size, 4),), 255, dtype=torch.uint8)
    with contextlib.suppress(IndexError, RuntimeError):
        assert tensor_codec(codec).decode(data, size).shape == (size,)


def test_gradients_at_known_positions_need_no_positions_on_the_wire() -> None:
    codec = Codec(name="topk", ratio=10.0)
    position = torch.tensor([3, 50, 77, 98, 99, 120, 121, 122, 123, 199])
    data = torch.empty(codec.wire_bytes(100, 4, positions_known=True), dtype=torch.uint8)
    assert len(data) == 2 * 10
    gradient = torch.randn(200)
    AtPositions(position).encode(gradient.view(2, 100), data)
    decoded = AtPositions(position).decode(data, 200)
    assert torch.equal(decoded[position], gradient[position].half().float())
    assert decoded.count_nonzero() == 10


def test_the_same_tensor_gives_the_same_bytes() -> None:
    x = torch.randint(-3, 4, (5000,), generator=torch.Generator().manual_seed(2)).float()  # many equal magnitudes
    for codec in CODECS:
        one, two = (torch.empty(codec.wire_bytes(5000, 4), dtype=torch.uint8) for _ in range(2))
        tensor_codec(codec).encode(x, one)
        tensor_codec(codec).encode(x.clone(), two)
        assert torch.equal(one, two)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10**7), st.floats(0.0, 1.0), st.booleans())
def test_as_many_elements_are_kept_as_the_bytes_allow(size: int, share: float, known: bool) -> None:
    limit = size * 4 * share
    kept = most_kept(size, limit, positions_known=known)

    def sent(count: int) -> int:
        codec = topk_of(size, count)
        assert codec.kept(size) == count
        return codec.wire_bytes(size, 4, positions_known=known)

    if size / max(kept, 1) > 1e6:
        return
    if kept:
        assert sent(kept) <= limit
    if kept < size:
        assert sent(kept + 1) > limit


def test_adatopk_compresses_links_in_proportion_and_keeps_its_promise() -> None:
    seconds = [4.0, 2.0, 0.04, 0.001]
    reductions = adatopk_reductions(seconds, 100.0)
    assert reductions == (100.0, 50.0, 1.0, 1.0)
    assert adatopk_reductions([0.0, 0.0], 9.0) == (1.0, 1.0)
    assert adatopk_reductions([], 9.0) == ()
    size = 2**20
    for element_bytes, factor in ((4, 1.0), (2, 2.0)):
        codec = topk_of(size, most_kept(size, size * element_bytes / 100.0))
        # FusionLLM's factor of 3 belongs to 32-bit values with 64-bit indices.
        assert codec.ratio == pytest.approx(factor * 100.0, rel=0.01)
        assert size * element_bytes / codec.wire_bytes(size, element_bytes) == pytest.approx(100.0, rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "topk", "ratio": 0.5}, "ratio"),
        ({"name": "topk", "ratio": float("nan")}, "ratio"),
        ({"name": "topk", "ratio": "10"}, "ratio"),
        ({"name": "topk", "ratio": 1e7}, "ratio"),
        ({"name": "int8", "ratio": 2.0}, "belongs to topk only"),
        ({"name": "zip"}, "'none', 'fp16', .*'topk' or 'powersgd'"),
    ],
)
def test_nonsense_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Codec(**fields)


def test_float32_sizes() -> None:
    sizes = {str(c): c.wire_bytes(1000, 4) for c in (Codec(), Codec(name="fp16"), Codec(name="int4"), TOPK[2])}
    assert sizes == {"none": 4000, "fp16": 2000, "int4": 500 + 16, "topk:10": 200 + 125}
    # One element at least, with a bitmap while that is shorter than a position.
    assert [Codec(name="topk", ratio=1000.0).wire_bytes(n, 4) for n in (1, 10, 100)] == [3, 4, 4]
