"""Profiles of other tools: each format as it is published, and what is wrong in it by name."""

import io
import json

import numpy as np
import pytest

from hetplanner.capture.assemble import capture_workload
from hetplanner.errors import InvalidInput
from hetplanner.profiles.imports.interface import Named
from hetplanner.profiles.imports.registry import FORMATS, imported_profile
from hetplanner.profiles.layers import layer_groups
from hetplanner.workload.presets import preset
from tests.support.models.captured_models import hf_gpt2

WORKLOAD = preset("gpt2", layers=2)


def _npy(values) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array(values))
    return out.getvalue()


SAILOR = {
    "2": {
        "1": {"0": [0.001, 0.002, 3e-3], "1": [0.01, 0.02, 3e-3], "2": [0.03, 0.04, 3e-3], "3": [0.002, 0.004, 3e-3]},
        "4": {"0": [0.001, 0.002, 1e-3], "1": [0.01, 0.01, 1e-3], "2": [0.01, 0.01, 1e-3], "3": [0.001, 0.001, 1e-3]},
    }
}  # fmt: skip
METIS = {
    "model": {"parameters": {"parameters_per_layer_bytes": [400, 200, 200, 200]}},
    "execution_time": {"layer_compute_total_ms": [3.0, 45.0, 75.0, 9.0], "optimizer_time_ms": 10.0},
}
TABLE = (
    "kind,degree,micro_batch,layer,forward_s,backward_s,update_s,kept_bytes\n"
    "GH200,1,2,0,0.001,0.002,0.003,10\nGH200,1,2,1,0.01,0.02,0.003,20\n"
    "GH200,1,2,2,0.03,0.04,0.003,40\nGH200,1,2,3,0.002,0.004,0.003,10\n"
)
FILES = {
    "csv": Named("mine.csv", TABLE.encode()),
    "sailor": Named("profile.json", json.dumps(SAILOR).encode()),
    "metis": Named("DeviceType.GH200_tp1_bs2.json", json.dumps(METIS).encode()),
    "amp": Named("gpt2_GH200_1.npy", _npy([0.0005, 0.0005, 0.01, 0.03, 0.0, 0.0, 0.002, 0.0])),
}


def _imported(files, workload, kind=None):
    return imported_profile({file.name: file.content for file in files}, workload, kind)


def test_every_format_has_an_example_here() -> None:
    assert set(FILES) == set(FORMATS)


@pytest.mark.parametrize("name", FILES)
def test_a_format_is_known_and_its_seconds_come_out(name: str) -> None:
    """Two blocks of 10 and 30 ms: the mean of both stands for each, so that their sum stays."""
    assert [n for n, format in FORMATS.items() if format.is_of(FILES[name])] == [name]
    kind = "GH200" if name == "sailor" else None
    profile = _imported([FILES[name]], WORKLOAD, kind)
    assert profile.kinds == ("GH200",)
    size = 1 if name == "amp" else 2
    costs = profile.costs["GH200", 1, size]
    forward = {layer: cost.forward for layer, cost in costs.items()}
    assert forward == pytest.approx({"embedding": 0.001, "block": 0.02, "head": {"metis": 0.003}.get(name, 0.002)})
    backward = {"csv": 0.03, "sailor": 0.03, "metis": 0.04, "amp": 0.04}
    assert costs["block"].backward == pytest.approx(backward[name])
    updates = {"csv": 0.003, "sailor": 0.003, "metis": 0.002, "amp": None}
    assert costs["block"].update == (pytest.approx(updates[name]) if updates[name] else None)
    assert costs["block"].kept == (30 if name == "csv" else None)
    assert name in profile.source


def test_degrees_are_kept() -> None:
    profile = _imported([FILES["sailor"]], WORKLOAD, "GH-96")
    assert sorted(profile.costs) == [("GH200", 1, 2), ("GH200", 4, 2)]
    assert profile.micro_batches("GH200") == (2,)


def test_embedding_and_head_of_a_captured_model_may_be_several_layers() -> None:
    """Two blocks of 10 and 30 ms, between layers that share the embedding's 1 ms and the head's 2 ms."""
    captured = capture_workload(hf_gpt2, "gpt2")
    profile = _imported([FILES["sailor"]], captured, "GH200")
    groups = layer_groups(captured)
    first, end = (sum(ops[0].layer is None for ops in side) for side in (groups[:4], groups[4:]))
    assert first > 1
    assert end > 1
    seconds = [profile.costs["GH200", 1, 2][name].forward for name in profile.layer_names]
    assert len(seconds) == first + 2 + end
    assert sum(seconds[:first]) == pytest.approx(0.001)
    assert sum(seconds[first:-end]) == pytest.approx(0.04)
    assert sum(seconds[-end:]) == pytest.approx(0.002)
    more = SAILOR["2"]["1"] | {"4": [0.1, 0.1, 0.1]}
    with pytest.raises(InvalidInput, match="has 5 layers, gpt2 has 4 with embedding and head"):
        _imported([Named("p.json", json.dumps({"2": {"1": more}}).encode())], captured, "GH200")


def test_a_table_may_name_layers() -> None:
    text = "micro_batch,layer,forward_s,backward_s\n1,head,0.1,0.2\n1,block,0.3,0.4\n1,embedding,0.5,0.6\n"
    profile = _imported([Named("t.csv", text.encode())], WORKLOAD, "T4")
    assert profile.costs["T4", 1, 1]["block"].backward == 0.4


def _csv(text: str) -> Named:
    return Named("t.csv", text.encode())


HEAD = "micro_batch,layer,forward_s,backward_s\n"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (Named("a.txt", b"x"), "a.txt: is of no known format of profiles"),
        (_csv("layer\n0\n"), "column micro_batch is missing"),
        (_csv(HEAD[:-1] + ",speed\n"), "unknown column 'speed'"),
        (_csv(HEAD + "1,0,fast,1\n"), "t.csv:2: forward_s: must be a number, got 'fast'"),
        (_csv(HEAD + "1,0,-1,1\n"), "t.csv:2: forward_s: must be 0 or more"),
        (_csv(HEAD + "1,0,nan,1\n"), "t.csv:2: forward_s: must be 0 or more"),
        (_csv(HEAD + "0,0,1,1\n"), "t.csv:2: micro_batch: must be a whole number from 1"),
        (_csv(HEAD + "1,0,1,1,9\n"), "t.csv:2: has more cells than columns"),
        (_csv(HEAD + "1,0,1,1\n1,0,1,1\n"), "layer '0' .* is given twice"),
        (_csv(HEAD + "1,0,1,1\n1,2,1,1\n"), "layer 1 of .* is missing"),
        (_csv(HEAD + "1,bloc,1,1\n"), "unknown layer 'bloc'; gpt2 has block, embedding, head"),
        (_csv(HEAD + "1,block,1,1\n"), "layer 'embedding' is missing"),
        (_csv(HEAD + "1,0,1,1\n1,1,1,1\n1,2,1,1\n"), r"has 3 layers, gpt2 has 4 with .*\(--layers 1\)"),
        (_csv(HEAD + "1,0,9e9,1\n1,1,1,1\n1,2,1,1\n1,3,1,1\n"), "layer embedding: forward: must be from 0 us"),
        (Named("p.json", b'{"1": {"1": {"0": [1, 2]}}}'), "p.json: 1.1.0: must be three numbers"),
        (Named("p.json", b'{"1": {"1": {"1": [1, 2, 3]}}}'), "layers must be numbered from 0 without a gap; 0"),
        (Named("p.json", b'{"1": {"one": {}}}'), "p.json: 1: must be an object whose names are whole numbers"),
        (Named("DeviceType.T4.json", b"{}"), "must be called DeviceType.KIND_tpDEGREE_bsSIZE.json"),
        (Named("DeviceType.T4_tp1_bs1.json", b"{}"), "execution_time: must be an object"),
        (Named("gpt2_T4_1.npy", b"x"), "not a NPY file|must hold a row of numbers"),
        (Named("gpt2_T4_1.npy", _npy([[1.0]])), "must hold a row of numbers, holds float64 of shape"),
        (Named("gpt2_T4_1.npy", _npy([1.0] * 6)), "must hold 7 to 20000 numbers: embedding, blocks, head, and 4"),
        (Named("gpt2_T4_1.npy", _npy([-1.0] * 8)), "must hold seconds of 0 or more"),
        (Named("gpt2_T4_1.npy", _npy(np.array([{}] * 8, dtype=object))), "not a NPY file|must hold a row of numbers"),
    ],
)
def test_what_is_wrong_is_named(file: Named, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        _imported([file], WORKLOAD, "T4")


def test_a_kind_is_asked_for_and_must_agree() -> None:
    with pytest.raises(InvalidInput, match=r"does not say what kind of device was measured; give it \(--kind GH200\)"):
        _imported([FILES["sailor"]], WORKLOAD)
    with pytest.raises(InvalidInput, match="is of 'GH200', not of 'T4'; leave --kind out"):
        _imported([FILES["csv"]], WORKLOAD, "T4")
    with pytest.raises(InvalidInput, match="files of one format"):
        _imported([FILES["csv"], FILES["amp"]], WORKLOAD)
