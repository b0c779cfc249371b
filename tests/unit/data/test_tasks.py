"""Hidden tokens and continuations: what a model reads and shall say is a pure function of seed, step and sample."""

import json

import numpy as np
import pytest

from hetplanner.capture.huggingface import config_factory
from hetplanner.data.need import need_of
from hetplanner.data.registry import check_data
from hetplanner.data.tasks import inputs_and_labels
from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.data import open_batches
from hetplanner.workload.capturing.capture import capture_config, mask_of_tokenizer
from hetplanner.workload.files import workload_from_data, workload_to_data
from hetplanner.workload.task import IGNORED, Continuation, HiddenTokens, num_hidden
from tests.support.models.architectures import ARCHITECTURES, captured

BERT = ARCHITECTURES["bert (hidden tokens)"] | {"model_type": "bert"}
TASK = HiddenTokens(kind="hidden tokens", mask_token=259, vocab=260)


def hidden(window, seed=0, step=0, ids=None, count=77):
    ids_B = np.arange(len(window)) if ids is None else np.array(ids)
    return inputs_and_labels(TASK, window, num_targets=count, seed=seed, step=step, ids_B=ids_B)


def test_of_each_sequence_so_many_tokens_are_hidden_as_bert_hides_them():
    window = np.random.default_rng(0).integers(0, 256, (400, 512))
    inputs, labels = hidden(window)
    is_target = labels != IGNORED
    assert (is_target.sum(axis=1) == 77).all()
    assert num_hidden(512) == 77
    assert (labels[is_target] == window[is_target]).all()
    assert (inputs[~is_target] == window[~is_target]).all()
    shown, was = inputs[is_target], window[is_target]
    masked, same = (shown == TASK.mask_token).mean(), (shown == was).mean()
    # Of 30,800 tokens; a share's deviation is at most 0.0023.
    assert masked == pytest.approx(0.8, abs=0.01)
    assert same == pytest.approx(0.1, abs=0.01)
    assert is_target.mean(axis=0).std() < 0.03  # every place as often as another
    other = shown[(shown != TASK.mask_token) & (shown != was)]
    assert len(np.unique(other)) > 250


def test_what_is_hidden_depends_on_seed_step_and_sample_alone():
    window = np.random.default_rng(0).integers(0, 256, (4, 64))
    whole = hidden(window, count=10)
    for part in ([0, 1], [2, 3], [3]):
        inputs, labels = hidden(window[part], ids=part, count=10)
        assert (inputs == whole[0][part]).all()
        assert (labels == whole[1][part]).all()
    for other in ({"seed": 1}, {"step": 1}, {"ids": [4, 5, 6, 7]}):
        assert (hidden(window, count=10, **other)[1] != whole[1]).any(axis=1).all()


def test_a_continuation_reads_the_first_half_and_says_the_second():
    window = np.arange(12).reshape(1, 12)
    inputs, labels = inputs_and_labels(
        Continuation(kind="continuation", start_token=99),
        window,
        num_targets=6,
        seed=0,
        step=0,
        ids_B=np.zeros(1, dtype=np.int64),
    )
    assert inputs.tolist() == [[0, 1, 2, 3, 4, 5, 99, 6, 7, 8, 9, 10]]
    assert labels.tolist() == [[6, 7, 8, 9, 10, 11]]


def test_micro_batches_of_a_captured_model(tmp_path):
    workload = captured("bert (hidden tokens)")
    assert (workload.seq_len, workload.program.num_targets, workload.token_word) == (2, 2, "targets")
    assert need_of(workload).seq_len == 16
    batches = open_batches(TrainConfig(), workload)
    inputs, labels, _ = batches.draw(3, 1)
    assert inputs.shape == labels.shape == (2, 16)
    assert (labels != IGNORED).sum(dim=1).tolist() == [2, 2]
    again = batches.draw(3, 1, reads=("labels",))[1]
    assert (again == labels).all()
    assert (batches.draw(0, 1, "validation")[1] != labels).any()
    read = workload_from_data(json.loads(json.dumps(workload_to_data(workload))), "w.json")
    assert read == workload
    broken = workload_to_data(workload)
    broken["program"]["task"] = {"kind": "continuation", "start_token": 0}
    with pytest.raises(InvalidInput, match="continuation needs 2 inputs a label"):
        workload_from_data(broken, "w.json")


def test_bytes_are_not_hidden_behind_a_byte(tmp_path):
    workload = captured("bert (hidden tokens)")
    check_data(None, workload)
    low = workload.replace(
        program=workload.program.replace(task=HiddenTokens(kind="hidden tokens", mask_token=103, vocab=260))
    )
    with pytest.raises(InvalidInput, match=r"the mask token 103 .* is one of them; write it as ids first"):
        check_data(None, low)


def test_the_mask_token_is_that_of_the_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps({"added_tokens": [{"id": 3, "content": "[CLS]"}, {"id": 7, "content": "[MASK]"}]}))
    assert mask_of_tokenizer(tokenizer) == 7
    assert capture_config(tmp_path, seq_len=16).program.task == HiddenTokens(
        kind="hidden tokens", mask_token=7, vocab=260
    )
    assert capture_config(tmp_path, seq_len=16, mask_token=9).program.task.mask_token == 9
    tokenizer.write_text(json.dumps({"added_tokens": [{"id": 8, "content": "<mask>"}]}))
    assert capture_config(tmp_path, seq_len=16).program.task.mask_token == 8


@pytest.mark.parametrize(
    ("fields", "mask_token", "says"),
    [
        (BERT, None, r'bert is bidirectional: .* --mask-token ID .*"is_decoder": true'),
        (BERT, 260, "--mask-token: must be an id below the 260 of c.json"),
        (BERT, -1, "--mask-token: must be an id below"),
        (BERT | {"architectures": ["BertLMHeadModel"]}, 259, "which BertLMHeadModel would learn to predict"),
        (BERT | {"architectures": ["BertForSequenceClassification"]}, 259, "labels that no kind of data gives"),
        (ARCHITECTURES["qwen2"] | {"model_type": "qwen2"}, 1, "qwen2 is a causal model; leave it out"),
        (ARCHITECTURES["vit"] | {"model_type": "vit"}, 1, "vit is an image classifier model; leave it out"),
        (ARCHITECTURES["t5"] | {"model_type": "t5", "pad_token_id": None}, None, "decoder_start_token_id: must be"),
        ({"model_type": "clap"}, None, "is no language model or image classifier"),
    ],
)  # fmt: skip
def test_a_loss_that_cannot_be_is_refused_in_a_line(fields, mask_token, says):
    with pytest.raises(InvalidInput, match=says) as caught:
        config_factory(fields, "c.json", seq_len=16, mask_token=mask_token)
    assert "\n" not in str(caught.value)
