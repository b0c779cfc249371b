"""Thousands of damaged start requests: each ends in one InvalidInput line, or in a valid plan."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import plan_to_data
from hetplanner.runs.agent.service import read_start_request
from tests.support.plans.factories import chain_plan

GOOD = {"plan": plan_to_data(chain_plan(shares=(1,), cuts=(4,))), "config": {"steps": 1}, "launcher": "local"}
JUNK = st.sampled_from(
    [None, -1, 0, 1e308, "", "x" * 5000, "'; rm -rf /", "../../etc", [], {}, [[]], {"a": {}}, True, "\x00", 2**80]
)


def places(data: object, path: tuple = ()) -> list[tuple]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path] * bool(path) + [place for key, value in items for place in places(value, (*path, key))]


PLACES = places(GOOD)


def refused_or_valid(body: bytes) -> None:
    message = ""
    try:
        read_start_request(body)
    except InvalidInput as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 2000


@settings(max_examples=400)
@given(st.sampled_from(PLACES), JUNK, st.booleans())
def test_a_damaged_field_is_refused_in_one_line(place, junk, remove):
    data = copy.deepcopy(GOOD)
    holder = data
    for key in place[:-1]:
        holder = holder[key]
    if remove:
        del holder[place[-1]]
    else:
        holder[place[-1]] = junk
    refused_or_valid(json.dumps(data).encode())


@settings(max_examples=400)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_line(body):
    refused_or_valid(body)


@settings(max_examples=200)
@given(st.integers(0, len(json.dumps(GOOD)) - 1))
def test_a_request_cut_short_is_refused(end):
    with pytest.raises(InvalidInput, match="request"):
        read_start_request(json.dumps(GOOD).encode()[:end])
