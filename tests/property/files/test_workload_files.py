"""Whatever is done to a config.json or a workload, it is read or refused with one line."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetplanner.schema import checked, parse_json
from hetplanner.workload.files import workload_from_data, workload_to_data
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.load import load_workload
from hetplanner.workload.presets import preset
from hetplanner.workload.workload import Workload
from tests.support.files.mutations import ODD_VALUES, garbled, mutated, read_or_refused

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 100,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "rope_scaling": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "hidden_act": "silu",
}
WORKLOAD = preset("tiny-llama", layers=2).model_dump(mode="json", exclude_none=True)

thousands = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))


def read_workload(read, *args, **kwargs):
    """The workload with its graph built, or None if it was refused properly."""
    workload = read_or_refused(read, *args, **kwargs)
    if workload is not None:
        assert workload.graph.num_params > 0
        assert all(op.backward_flops >= 0 for op in workload.graph.ops)
    return workload


@thousands
@given(st.sampled_from([GPT2, LLAMA]).flatmap(mutated))
def test_a_changed_config(data):
    read_workload(lambda: workload_from_config(parse_json(json.dumps(data), "config.json")))


@thousands
@given(garbled(LLAMA))
def test_a_garbled_config(text):
    def read():
        data = parse_json(text, "config.json")
        return workload_from_config(data if isinstance(data, dict) else {})

    read_workload(read)


@thousands
@given(mutated(WORKLOAD))
def test_a_changed_workload(data):
    workload = read_workload(checked, Workload, data, "x.json", from_file=True)
    if workload is not None:
        again = checked(Workload, workload.model_dump(mode="json"), "x.json", from_file=True)
        assert again == workload


CAPTURED = workload_to_data(preset("tiny-resnet"))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutated(CAPTURED))
def test_a_changed_workload_file(data):
    workload = read_workload(workload_from_data, data, "x.json")
    if workload is not None:
        assert workload_from_data(workload_to_data(workload), "x.json") == workload


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(["layers", "global_batch", "micro_batch", "seq_len", "dtype", "recompute"]), ODD_VALUES)
def test_odd_overrides(name, value):
    read_workload(preset, "tiny-gpt", **{name: value})


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30))
def test_odd_names(name):
    read_workload(load_workload, name)
