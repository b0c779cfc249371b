import json
import math

import pytest

from hetplanner.cluster.model import Cluster, Device, LinkValue
from hetplanner.errors import InvalidInput
from hetplanner.schema import MAX_CONTAINERS, MAX_DEPTH, check_format, checked, parse_json, read_text


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(InvalidInput) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    assert text.isprintable(), text
    return text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ("[" * 100_000, "nested at most"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested at most"),
        ("[" + "[]," * MAX_CONTAINERS + "[]]", "at most 1000000 lists and objects"),
        ("9" * 5000, "digits"),
        (b"\xff\xfe\x00", "UTF-8"),
        ('{"a\\nb": 1, "a\\nb": 2}', "given twice"),
    ],
    ids=range(11),
)
def test_text_that_is_no_file_of_ours_is_refused(text, says):
    message = refused(parse_json, text, "x.json")
    assert message.startswith("x.json")
    assert says in message


def test_nesting_up_to_the_limit_and_brackets_in_strings_are_fine():
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(parse_json(deep, "x")) == deep
    assert parse_json('{"a": "[[[[{{{{\\"[["}', "x") == {"a": '[[[[{{{{"[['}
    assert parse_json(b"\xef\xbb\xbf[1]", "x") == [1]


def test_a_text_above_the_limit_is_not_parsed(monkeypatch):
    monkeypatch.setattr("hetplanner.schema.MAX_FILE_BYTES", 2**20)
    assert "must be at most 1.05 MB" in refused(parse_json, "[" + "1," * 2**20 + "1]", "x.json")


def test_paths_that_hold_no_file(tmp_path):
    assert "no such file" in refused(read_text, tmp_path / "missing.json")
    assert "not a regular file" in refused(read_text, tmp_path)
    assert "no such file" in refused(read_text, "a\0b")
    refused(read_text, "x" * 5000)
    refused(read_text, "two\nlines")
    big = tmp_path / "big.json"
    big.write_bytes(b"x" * 3000)
    assert "must be at most" in refused(read_text, big, 2000)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "required field is missing"),
        ("hetplanner/plan@1", "must be 'hetplanner/cluster@1'"),
        ("hetplanner/cluster@0", "must be 'hetplanner/cluster@1'"),
        ("hetplanner/cluster@x", "must be 'hetplanner/cluster@1'"),
        ("hetplanner/cluster@²", "must be 'hetplanner/cluster@1'"),
        ("hetplanner/cluster@2", "newer than this hetplanner reads ('hetplanner/cluster@1'); upgrade"),
        ("hetplanner/cluster@999999", "newer"),
        (7, "must be"),
        ("cluster\n@1", "must be"),
    ],
)
def test_other_formats_and_newer_versions(text, says):
    data = {"format": text} if text is not None else {}
    assert says in refused(check_format, data, "cluster", 1, "x.json")


def test_a_file_that_is_no_object():
    assert "must be a JSON object, got list" in refused(check_format, [], "cluster", 1, "x.json")


def test_the_first_broken_law_is_named_with_its_place_value_and_number_of_others():
    data = {"id": "a", "host": "h", "memory": "0 GiB", "speed": 3}
    message = refused(checked, Device, data, "x.json", from_file=True)
    assert message == "x.json: kind: required field is missing; add it (and 2 more)"
    message = refused(checked, Device, data | {"kind": "T4", "speed": 3}, "x.json", from_file=True)
    assert message == "x.json: memory: must be above 0, got '0 GiB' (and 1 more)"
    message = refused(checked, Device, {"id": "a", "host": "h", "kind": "T4", "sp\need": 3}, "x.json")
    assert message == "x.json: sp\\need: unknown field; remove it or correct its spelling"


@pytest.mark.parametrize(
    "value", [-1.0, 0.0, math.nan, math.inf, -math.inf, 1e30, 10**400, -(10**400), True, "fast", None, {}]
)
def test_rates_out_of_range_are_refused(value):
    assert "bandwidth" in refused(checked, LinkValue, {"latency": 0.0, "bandwidth": value}, "x")


@pytest.mark.parametrize("value", ["-1 ms", "1e20 s", 5, 5.0, "5"])
def test_latencies_out_of_range_or_without_unit_are_refused_in_files(value):
    refused(checked, LinkValue, {"latency": value, "bandwidth": "1 Gbit/s"}, "x", from_file=True)


def test_numbers_are_si_in_python_and_zero_latency_is_fine():
    link = checked(LinkValue, {"latency": 0, "bandwidth": 125}, "x")
    assert (link.latency, link.bandwidth) == (0.0, 125.0)
    assert link.model_dump(mode="json")["bandwidth"] == "1 kbit/s"


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "\x00", "x" * 121, "\u202eabc", 5, None])
def test_names_are_printable_and_short(name):
    refused(checked, Device, {"id": name, "kind": "T4", "host": "h"}, "x")


def test_replace_validates_and_equality_is_by_fields():
    device = Device(id="a", kind="T4", host="h")
    assert device.replace(id="b").id == "b"
    assert device.replace() == device
    assert hash(device.replace()) == hash(device)
    assert device != device.replace(host="g")
    assert device != "a"
    refused(device.replace, id="")
    refused(device.replace, colour="red")


def test_equality_survives_cached_matrices():
    data = {
        "name": "c",
        "sites": [{"name": "s", "latitude": 0, "longitude": 0}],
        "hosts": [{"id": "h", "site": "s"}],
        "devices": [{"id": x, "kind": "T4", "host": "h"} for x in "ab"],
        "host_links": [{"host": "h", "latency": 0.0, "bandwidth": 1e9}],
    }
    one, two = (checked(Cluster, data, "c") for _ in range(2))
    assert one.latency_s_DD.shape == two.latency_s_DD.shape
    assert one == two
