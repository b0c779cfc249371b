import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplanner import units
from hetplanner.errors import InvalidInput


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_seconds, "67 ms", 0.067),
        (units.parse_seconds, "1.5s", 1.5),
        (units.parse_seconds, "3 µs", 3e-6),
        (units.parse_seconds, "3 μs", 3e-6),
        (units.parse_seconds, "2 min", 120.0),
        (units.parse_bytes, "16 GiB", 2**34),
        (units.parse_bytes, "16 GB", 16 * 10**9),
        (units.parse_bytes, "1.5 KiB", 1536),
        (units.parse_bytes_per_s, "1.12 Gbit/s", 1.4e8),
        (units.parse_bytes_per_s, "900 GB/s", 9e11),
        (units.parse_bytes_per_s, "800 kbit/s", 1e5),
        (units.parse_flops_per_s, "125 TFLOP/s", 1.25e14),
        (units.parse_flops_per_s, "1e3 GFLOP/s", 1e12),
    ],
)
def test_units_are_read_as_si(parse, text, value):
    assert parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "hint"),
    [
        (units.parse_bytes_per_s, "10 Gbps", "did you mean Gbit/s?"),
        (units.parse_bytes_per_s, "10 gbit/s", "did you mean Gbit/s?"),
        (units.parse_flops_per_s, "10 TFLOPS", "did you mean TFLOP/s?"),
        (units.parse_seconds, "10 sec", "did you mean s?"),
        (units.parse_bytes, "16 gib", "did you mean GiB?"),
    ],
)
def test_a_near_miss_is_corrected(parse, text, hint):
    with pytest.raises(InvalidInput, match=hint.replace("?", r"\?")):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "5", "ms", "five ms", "5 ms ms", "5 GB", "1e999 s", "nan s", "inf s", 5, 5.0, None, True, [], "9" * 99 + " s"],
)
def test_anything_else_is_refused_in_one_line(text):
    with pytest.raises(InvalidInput) as caught:
        units.parse_seconds(text)
    assert "\n" not in str(caught.value)
    assert repr(text)[:40] in str(caught.value)


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_seconds_read_back_exactly(value):
    assert units.parse_seconds(units.format_seconds(value)) == value


@given(st.floats(min_value=1.0, max_value=1e15))
def test_rates_read_back_exactly(value):
    assert units.parse_bytes_per_s(units.format_bytes_per_s(value)) == value
    assert units.parse_flops_per_s(units.format_flops_per_s(value * 1e3)) == value * 1e3


@given(st.integers(min_value=0, max_value=2**53))
def test_bytes_read_back_exactly(value):
    assert units.parse_bytes(units.format_bytes(value)) == value


def test_written_units_are_the_ones_a_person_would_choose():
    assert units.format_seconds(0.067) == "67 ms"
    assert units.format_bytes(2**34) == "16 GiB"
    assert units.format_bytes_per_s(1.4e8) == "1.12 Gbit/s"
    assert units.format_flops_per_s(1.25e14) == "125 TFLOP/s"
    assert units.format_seconds(0.0) == "0 us"


def test_short_forms_have_three_digits():
    assert units.short_seconds(0.04213) == "42.1 ms"
    assert units.short_seconds(1.96e-9) == "1.96 ns"
    assert units.short_bytes(12_345_678) == "12.3 MB"
    assert units.short_rate(1.4e8) == "1.12 Gbit/s"
    assert units.short_rate(0.0) == "0 kbit/s"
    assert units.short_seconds(0) == "0 s"
    assert units.short_seconds(math.inf) == "inf s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0421, "42.1 ms"), (127.4, "127 s"), (599.4, "599 s"), (600.0, "10 min"), (3470.0, "57.8 min"),
        (7200.0, "2 h"), (86_400.0, "24 h"), (2 * 86_400.0, "2 d"), (1.2e9, "13,889 d"), (-3470.0, "-57.8 min"),
    ],
)  # fmt: skip
def test_long_durations_are_minutes_hours_and_days_for_a_person(seconds, text):
    assert units.short_seconds(seconds) == text


def test_numbers_for_a_person_have_no_exponent():
    assert units.short_bytes(3.47e15) == "3,470 TB"
    assert units.short_rate(1.2e15 / 8) == "1,200 Tbit/s"
