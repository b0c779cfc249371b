"""Whatever is done to a plan file, it is read or refused with one line; it never names code."""

import json

import pytest
from hypothesis import HealthCheck, given, settings

from hetplanner.codecs.spec import Codec
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import any_plan_from_data, load_any_plan, plan_from_json, plan_to_data, save_plan
from hetplanner.plan.model import LinkCodec
from hetplanner.schema import parse_json
from tests.support.files.mutations import ODD_VALUES, garbled, mutated, read_or_refused
from tests.support.plans.factories import chain_plan, swarm_plan

INT8 = Codec(name="int8")
PLAN = chain_plan([2, 1], [3])
SWARM = swarm_plan(
    [1, 2],
    [3],
    activation_codec=INT8,
    link_codecs=(LinkCodec(from_device="d0", to_device="d2", role="activation", codec=Codec(name="int4")),),
)
PLANS = {plan.mode: plan for plan in (PLAN, SWARM)}
VALID = json.loads(json.dumps(plan_to_data(PLAN)))
VALID_SWARM = json.loads(json.dumps(plan_to_data(SWARM)))

thousands = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))


def read_plan(text):
    return read_or_refused(lambda: any_plan_from_data(parse_json(text, "x.json"), "x.json"))


@pytest.mark.parametrize("mode", PLANS)
def test_a_plan_reads_back_equal_from_its_file(mode, tmp_path):
    save_plan(PLANS[mode], tmp_path / "plan.json")
    again = load_any_plan(tmp_path / "plan.json")
    assert again == PLANS[mode]
    assert again.digest() == PLANS[mode].digest()


@thousands
@given(mutated(VALID) | mutated(VALID_SWARM))
def test_a_changed_plan_file(data):
    plan = read_plan(json.dumps(data))
    if plan is not None:
        again = read_plan(json.dumps(plan_to_data(plan)))
        assert again == plan
        assert again.digest() == plan.digest()


@thousands
@given(garbled(VALID) | garbled(VALID_SWARM))
def test_a_garbled_plan_file(text):
    read_plan(text)


@settings(max_examples=300, deadline=None)
@given(ODD_VALUES)
def test_a_file_that_is_something_else(value):
    assert read_plan(json.dumps(value)) is None


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
