"""Whatever is done to a plan file, it is read or refused with one line; it never names code."""

import json

import pytest
from factories import chain_plan
from hypothesis import HealthCheck, given, settings
from mutations import ODD_VALUES, check_refusal, garbled, mutated

from hetplanner.errors import InvalidInput
from hetplanner.plan.files import load_plan, plan_from_json, plan_to_data, save_plan

PLAN = chain_plan([2, 1], [3])
VALID = json.loads(json.dumps(plan_to_data(PLAN)))

thousands = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))


def read_or_refuse(text):
    try:
        return plan_from_json(text, "x.json")
    except InvalidInput as error:
        check_refusal(error)
        return None


def test_a_plan_reads_back_equal_from_its_file(tmp_path):
    save_plan(PLAN, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert again == PLAN
    assert again.digest() == PLAN.digest()


@thousands
@given(mutated(VALID))
def test_a_changed_plan_file(data):
    plan = read_or_refuse(json.dumps(data))
    if plan is not None:
        again = read_or_refuse(json.dumps(plan_to_data(plan)))
        assert again == plan
        assert again.digest() == plan.digest()


@thousands
@given(garbled(VALID))
def test_a_garbled_plan_file(text):
    read_or_refuse(text)


@settings(max_examples=300, deadline=None)
@given(ODD_VALUES)
def test_a_file_that_is_something_else(value):
    assert read_or_refuse(json.dumps(value)) is None


@pytest.mark.parametrize("where", ["plan", "problem", "workload", "stage", "transformer", "codec"])
def test_a_plan_that_names_code_is_refused(where):
    data = json.loads(json.dumps(VALID))
    inside = {
        "plan": data,
        "problem": data["problem"],
        "workload": data["problem"]["workload"],
        "stage": data["stages"][0],
        "transformer": data["problem"]["workload"]["transformer"],
        "codec": data["stages"][0]["reduce_codec"],
    }[where]
    inside["factory"] = "os:system"
    with pytest.raises(InvalidInput, match=r"factory: unknown field; remove it"):
        plan_from_json(json.dumps(data), "x.json")
