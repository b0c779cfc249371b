"""Pairs of source and target: batches are those of transformers' collator; what is no pair is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast

from hetplanner.data.pairs import PairedDocuments
from hetplanner.data.registry import check_data, open_data, open_stream
from hetplanner.data.tokenizing.records import Columns
from hetplanner.data.tokenizing.writing import write_tokens
from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.data import open_batches, open_held_out
from hetplanner.workload.capturing.capture import capture_config
from hetplanner.workload.workload import Workload
from tests.support.models.captured_models import captured_here
from tests.support.models.packed_data import documents_folder, some_documents

T = 8
ROWS = [{"en": "a " * (n % 11 + 1) + "b", "de": "c " * (n % 9) + "d"} for n in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 whose tokenizer ends texts with </s>, as those of transformers do."""
    path = tmp_path_factory.mktemp("model") / "t5"
    config = transformers.T5Config(
        vocab_size=8, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    config.save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4, "d": 5}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def workload(folder: Path) -> Workload:
    with captured_here():
        return capture_config(folder, micro_batch=2, global_batch=4, seq_len=T, pairs=True)


@pytest.fixture(scope="module")
def table(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows as a folder of token files."""
    place = tmp_path_factory.mktemp("table")
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    write_tokens(place / "rows.jsonl", folder, place / "ids", columns=Columns(prompt="en", answer="de"))
    return place / "ids"


def test_batches_are_those_of_the_collator(folder: Path, workload: Workload, table: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>")
    model = transformers.T5ForConditionalGeneration(transformers.T5Config.from_pretrained(folder))
    collate = DataCollatorForSeq2Seq(tokenizer, model=model, padding="max_length", max_length=T)
    rows = [row for number, row in enumerate(ROWS, 1) if number % 10]
    batch = collate(
        [
            {
                "input_ids": tokenizer(row["en"]).input_ids[:T],
                "labels": tokenizer(text_target=row["de"]).input_ids[:T],
            }
            for row in rows
        ]
    )
    source = open_data(str(table), workload)
    assert isinstance(source, PairedDocuments)
    ids = np.arange(source.num_samples("train"))
    inputs, labels = source.inputs("train", ids), source.labels("train", ids)
    assert np.array_equal(inputs[:, :T], batch["input_ids"])
    assert np.array_equal(labels, batch["labels"])
    assert np.array_equal(inputs[:, T:], batch["decoder_input_ids"])
    assert source.num_labels("train", ids) == (labels != -100).sum()
    held_out = open_held_out(TrainConfig(data=str(table), eval_data=str(table)), workload)
    assert held_out is not None
    assert held_out.source.num_samples("validation") == len(ROWS)
    batches = open_batches(TrainConfig(data=str(table)), workload)
    for found in (batches.draw(0, 1), held_out.draw(0, 1, "validation")):
        assert found.documents is None
        is_learnt = found.labels[:, :-1] != -100
        assert torch.equal(found.inputs[:, T + 1 :][is_learnt], found.labels[:, :-1][is_learnt])


def test_what_is_no_pair_is_refused(folder: Path, workload: Workload, table: Path, tmp_path: Path) -> None:
    texts = documents_folder(tmp_path / "texts", some_documents(20, vocab=8), answers=False, vocab=8)
    for data in (str(texts), str(texts / "train.bin")):
        with pytest.raises(
            InvalidInput, match="holds no pairs, which workload t5 learns; write some: hetplanner workload"
        ):
            check_data(data, workload)
    with captured_here():
        goes_on = capture_config(folder, micro_batch=2, global_batch=4, seq_len=T)
    with pytest.raises(InvalidInput, match=r"learns to go on with a text; capture it anew for pairs: .* --pairs"):
        check_data(str(table), goes_on)
    with pytest.raises(InvalidInput, match="holds pairs, and a swarm learns every token; train a static plan"):
        open_stream(str(table), workload)
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1}')
    with captured_here(), pytest.raises(InvalidInput, match="--pairs: belongs to a model of encoder and decoder"):
        capture_config(tmp_path / "gpt2", pairs=True)
