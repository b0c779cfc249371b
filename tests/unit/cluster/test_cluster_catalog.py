import pytest

from hetplanner.cluster.catalog import device_kind, find_kind, kind_names, resolve_device
from hetplanner.cluster.model import Device
from hetplanner.errors import InvalidInput


def device(kind="V100-16", **fields):
    return Device(id="d", kind=kind, host="h", **fields)


@pytest.mark.parametrize("name", kind_names())
def test_every_kind_resolves_to_sensible_numbers(name):
    spec = resolve_device(device(name))
    assert spec.kind == name
    assert 1e12 < spec.flops_per_s("float32") <= spec.flops_per_s("float16") < 1e16
    assert 0 < spec.efficiency < 1
    assert 0 < spec.reserve_bytes < spec.memory_bytes
    assert spec.usable_bytes == spec.memory_bytes - spec.reserve_bytes
    assert 5e10 <= spec.memory_bandwidth_bytes_per_s < 1e13
    assert device_kind(name).link_bytes_per_s > 0


def test_the_catalog_has_the_25_kinds():
    assert len(kind_names()) == 25


@pytest.mark.parametrize("name", ["V100", "v100", "NVIDIA V100", "v100-16", "V100 16", "V100_16"])
def test_names_are_found_by_alias_and_spelling(name):
    assert device_kind(name).name == "V100-16"


def test_an_unknown_kind_lists_the_nearest():
    assert find_kind("V10O") is None
    with pytest.raises(InvalidInput, match=r"kind: 'H1000' is not in the catalog; nearest are .*H100.*cluster gpus"):
        device_kind("H1000")
    with pytest.raises(InvalidInput, match="known are T4, "):
        device_kind("???")


def test_what_the_file_says_wins_over_the_catalog():
    spec = resolve_device(
        device(peak={"float16": 1e14}, memory=3.2e10, efficiency=0.3, reserve=0.0, price_usd_per_hour=1.0)
    )
    assert spec.flops_per_s("float16") == 1e14
    assert spec.flops_per_s("float32") == 15.7e12
    assert (spec.memory_bytes, spec.efficiency, spec.reserve_bytes, spec.price_usd_per_hour) == (3.2e10, 0.3, 0.0, 1.0)
    assert spec.usable_bytes == 3.2e10


def test_a_format_the_hardware_lacks_runs_at_the_float32_rate():
    spec = resolve_device(device())
    assert spec.flops_per_s("bfloat16") == spec.flops_per_s("float32") == 15.7e12
    assert spec.flops_per_s("float16") == 125e12


def test_tf32_is_faster_than_float32_where_there_are_units_for_it():
    ampere, volta = (resolve_device(device(kind)) for kind in ("A100-80", "V100-16"))
    assert (ampere.flops_per_s("tf32"), ampere.flops_per_s("float32")) == (156e12, 19.5e12)
    assert volta.flops_per_s("tf32") == volta.flops_per_s("float32")


def test_an_unknown_kind_must_say_everything_that_planning_needs():
    with pytest.raises(
        InvalidInput, match="device 'd': kind 'X1' is not in the catalog, so peak, memory_bandwidth must"
    ):
        resolve_device(device("X1", memory=1e9))
    spec = resolve_device(device("X1", memory=1e10, memory_bandwidth=1e11, peak={"float16": 1e13}))
    assert spec.price_usd_per_hour is None
    assert spec.flops_per_s("float16") == 1e13
    with pytest.raises(InvalidInput, match="no float32 or float32 rate is known"):
        spec.flops_per_s("float32")


def test_equal_devices_share_one_answer():
    assert resolve_device(device()) is resolve_device(Device(id="other", kind="V100-16", host="g"))
