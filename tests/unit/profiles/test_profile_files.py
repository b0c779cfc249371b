"""Profiles and their files: what is written reads back, and what is wrong is named."""

import json
from pathlib import Path

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.profiles.curves import cost_at
from hetplanner.profiles.files import (
    load_profile,
    load_profiles,
    merge_profiles,
    profile_from_json,
    profile_to_data,
    save_profile,
)
from hetplanner.profiles.layers import layer_runs
from hetplanner.profiles.match import difference
from hetplanner.profiles.model import CollectiveCost, LayerCost
from hetplanner.reading import noting
from hetplanner.workload.presets import preset, preset_names
from tests.support.plans.profiles import made_profile

WORKLOAD = preset("tiny-gpt")


def _data():
    return json.loads(json.dumps(profile_to_data(made_profile(WORKLOAD))))


def test_a_profile_reads_back_as_it_was(tmp_path: Path) -> None:
    profile = made_profile(WORKLOAD, kept=1234)
    save_profile(profile, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile


def gathered(size: float = 4096.0, **changes: object) -> CollectiveCost:
    fields = {"kind": "CPU generic", "degree": 2, "collective": "all-gather", "size": size, "seconds": 1e-3}
    return CollectiveCost(**(fields | changes))


def test_collectives_read_back_in_a_new_version_and_are_merged(tmp_path: Path) -> None:
    profile = made_profile(WORKLOAD, collectives=(gathered(2.0**20), gathered(seconds=2e-4)))
    save_profile(profile, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile
    assert json.loads((tmp_path / "p.json").read_text())["format"] == "hetplanner/profile@2"
    assert profile_to_data(made_profile(WORKLOAD))["format"] == "hetplanner/profile@1"
    assert profile.collective_curve("CPU generic", 2, "all-gather") == ((4096.0, 2e-4), (2.0**20, 1e-3))
    other = made_profile(WORKLOAD, "T4", collectives=(gathered(kind="T4"),))
    assert {row.kind for row in merge_profiles([profile, other]).collectives} == {"CPU generic", "T4"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((gathered(kind="H100"),), r"collectives\[0\].kind: 'H100' has no rows; the kinds are CPU generic"),
        ((gathered(), gathered(seconds=2.0)), r"collectives\[1\]: all-gather of 4,096 bytes is there twice"),
        ((gathered(), gathered(size=0.0)), r"collectives\[1\]: size and seconds must be above 0"),
    ],
)
def test_wrong_collectives_are_named(rows: tuple[CollectiveCost, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        made_profile(WORKLOAD).replace(collectives=rows)


@pytest.mark.parametrize("name", preset_names())
def test_layers_are_the_whole_model_and_end_where_stages_may(name: str) -> None:
    workload = preset(name)
    runs = layer_runs(workload)
    edges = [0]
    for run in runs:
        edges += [edges[-1] + run.ops * (k + 1) for k in range(run.times)]
    assert edges[-1] == len(workload.graph.ops)
    assert set(edges[1:-1]) <= set(workload.boundaries)
    if workload.transformer is not None:
        assert [run.name for run in runs] == ["embedding", "block", "head"]
        assert runs[1].times == workload.transformer.layers


def test_unlike_layers_have_names_of_their_own() -> None:
    runs = layer_runs(preset("tiny-gpt", freeze_layers=2))
    assert [(run.name, run.times) for run in runs] == [
        ("embedding", 1),
        ("block", 2),
        ("block 2", 1),
        ("block 3", 3),
        ("head", 1),
    ]


def _changed(change):
    data = _data()
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["rows"].pop(), "'CPU generic' at micro-batch 4 has no row for layer 'head'; measure it"),
        (lambda d: d["rows"].append(d["rows"][0]), "has layer 'embedding' twice"),
        (lambda d: d["rows"][0].update(layer="bloc"), r"rows\[0\].layer: unknown layer 'bloc'; the layers are block,"),
        (lambda d: d["rows"][0].update(forward="-1 ms"), "must be 0 or more"),
        (lambda d: d["rows"][0].update(forward="3e9 s"), "must be from 0 us to"),
        (lambda d: d["rows"][0].update(forward=0.5), "must be a string with a unit"),
        (lambda d: d["rows"][0].update(micro_batch=0), "rows.*micro_batch: .*greater than or equal to 1"),
        (lambda d: d["rows"][0].update(extra=1), "unknown field"),
        (lambda d: [r.update(forward="0 s", backward="0 s") for r in d["rows"]], "takes no time at all"),
        (lambda d: d["layers"].append({"name": "block", "ops": 3}), "layer 'block' has 2 operators before and 3 here"),
        (lambda d: d["layers"][1].update(times=20_000), "at most 20000"),
        (lambda d: d.update(format="hetplanner/profile@9"), "profile@9"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        profile_from_json(_changed(change), "p.json")


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (preset("tiny-gpt", dtype="bfloat16"), "is of float32, the workload of bfloat16; choose --dtype float32"),
        (preset("tiny-gpt", seq_len=32), "is of samples of 64 tokens, the workload has 32; choose --seq-len 64"),
        (preset("tiny-gpt", layers=3), "weights, the workload 'tiny-gpt' has"),
        (preset("tiny-gpt", freeze_layers=2), "trained weights, the workload trains"),
    ],
)
def test_a_profile_of_another_model_says_what_differs(workload, words: str) -> None:
    assert words in difference(made_profile(WORKLOAD), workload)
    assert difference(made_profile(WORKLOAD), WORKLOAD.replace(micro_batch=1)) == ""


def test_profiles_of_one_model_become_one_and_others_do_not() -> None:
    one, two = made_profile(WORKLOAD, "A100-SXM4-80GB"), made_profile(WORKLOAD, "T4", source="other")
    both = merge_profiles([one, two])
    assert both.kinds == ("A100-SXM4-80GB", "T4")
    assert both.source == "made by hand; other"
    with pytest.raises(InvalidInput, match="must be of one model; seq_len is 64 and 32"):
        merge_profiles([one, made_profile(preset("tiny-gpt", seq_len=32), "T4")])
    with pytest.raises(InvalidInput, match="twice"):
        merge_profiles([one, one])


def test_a_profile_of_another_torch_is_noted(tmp_path: Path) -> None:
    save_profile(made_profile(WORKLOAD, torch="1.2.0"), tmp_path / "p.json")
    notes: list[str] = []
    with noting(notes.append):
        load_profiles([tmp_path / "p.json"])
    assert "was measured with torch 1.2.0" in notes[0]


def _row(size: int, forward: float, **more: float) -> LayerCost:
    return LayerCost(kind="T4", layer="block", micro_batch=size, forward=forward, backward=forward, **more)


@pytest.mark.parametrize(
    ("rows", "size", "seconds"),
    [
        ([(1, 1.0), (4, 2.5)], 1, 1.0),
        ([(1, 1.0), (4, 2.5)], 2, 1.5),
        ([(2, 1.5), (4, 2.5)], 1, 1.0),
        ([(2, 1.5), (4, 2.5)], 8, 4.5),
        ([(2, 2.0)], 8, 8.0),
        ([(2, 1.0), (4, 4.0)], 1, 0.5),  # never below a share in proportion
        ([(2, 1.0), (4, 4.0)], 8, 8.0),  # never above it
        ([(2, 1.0), (4, 0.5)], 8, 0.5),  # more samples never take less
    ],
)
def test_seconds_between_and_beyond_measured_micro_batches(rows, size: int, seconds: float) -> None:
    assert cost_at([_row(*row) for row in rows], size).forward == pytest.approx(seconds)


def test_an_update_does_not_grow_with_the_micro_batch_and_what_is_unknown_stays_so() -> None:
    found = cost_at([_row(1, 1.0, update=0.5), _row(2, 2.0, update=0.7)], 4)
    assert found.update == 0.7
    assert found.kept is None
