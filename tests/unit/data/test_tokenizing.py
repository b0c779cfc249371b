"""Text as a model's own ids: what transformers gives, whole or not at all, and bytes refused beside a tokenizer."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.data.registry import is_bytes, open_data
from hetplanner.data.tokenizing import writing
from hetplanner.data.tokenizing.writing import write_tokens
from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runs import resuming
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan

LINES = [f"The {word} fox jumps over {n} lazy dogs: naïve café, ½ of 日本.\n" for n, word in enumerate("abc" * 40)]
TEXT = "".join(LINES)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a byte-level BPE tokenizer of 400 words at most, whose text ends with id 0."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "eos_token_id": 0}))
    return folder


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for n in range(40):
        (folder / f"{n}.txt").write_text(TEXT[n * 10 :], encoding="utf-8")
    return folder


def ids_in(path):
    return np.fromfile(path, dtype="<u2").tolist()


def test_the_ids_are_those_of_transformers(model, tmp_path):
    from transformers import PreTrainedTokenizerFast

    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    written = write_tokens(tmp_path / "a.txt", model, tmp_path / "out")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json")).encode(TEXT)
    assert ids_in(tmp_path / "out" / "train.bin") == [*theirs, 0]
    assert written.tokens == {"train.bin": len(theirs) + 1}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["train.bin", "train.documents", "train.json"]
    workload = preset("tiny-gpt").replace(transformer=preset("tiny-gpt").transformer.replace(vocab=written.vocab))
    assert open_data(str(tmp_path / "out"), workload).num_samples("train") > 10
    with pytest.raises(InvalidInput, match="vocab must be at most the 256"):
        open_data(str(tmp_path / "out"), preset("tiny-gpt"))


def test_what_a_tokenizer_cuts_and_fills_up_for_batches_is_left_whole(model, tmp_path):
    short = tmp_path / "short"
    short.mkdir()
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    whole = tokenizer.encode(TEXT).ids
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=10**5)
    tokenizer.save(str(short / "tokenizer.json"))
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    write_tokens(tmp_path / "a.txt", short, tmp_path / "out")
    assert ids_in(tmp_path / "out" / "train.bin") == whole


def test_a_long_text_is_cut_where_lines_end(model, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "PIECE_CHARACTERS", 500)
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8", newline="")
    said = []
    written = write_tokens(tmp_path / "a.txt", model, tmp_path / "out", lambda w: said.append(sum(w.tokens.values())))
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    parts = [tokenizer.decode(ids_in(tmp_path / "out" / name)) for name in ("train.bin", "val.bin")]
    assert sorted("".join(parts).splitlines()) == sorted(TEXT.splitlines())
    assert len(parts[1]) == pytest.approx(len(TEXT) / 10, rel=0.5)
    assert len(said) > 5
    assert said == sorted(said)
    assert written.texts == 1


def test_files_are_held_out_whole(model, texts, tmp_path):
    written = write_tokens(texts, model, tmp_path / "out")
    assert written.texts == 40
    ends = [ids_in(tmp_path / "out" / name).count(0) for name in ("train.bin", "val.bin")]
    assert sum(ends) == 40
    assert 0 < ends[1] < 12


def test_what_is_wrong_is_named_and_nothing_is_left(model, texts, tmp_path):
    out = tmp_path / "out"

    def refused(words, text=texts, folder=model):
        with pytest.raises(InvalidInput, match=words):
            write_tokens(text, folder, out)

    (texts / "7.txt").write_bytes(b"caf\xe9")
    refused(r"7\.txt: is not UTF-8 \(.*\); convert it")
    refused(r"has no tokenizer\.json; save one there", folder=texts)
    refused("cannot be read", text=tmp_path / "none.txt")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused("holds no text", text=empty)
    (empty / "a.txt").touch()
    refused("holds no text", text=empty)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text('{"model": 3}')
    refused("is no tokenizer", folder=broken)
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    refused("holds something; give a new or an empty folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken", "empty", "out", "texts"]


def test_the_command_says_what_to_do_next(model, texts, tmp_path):
    done = CliRunner().invoke(app, ["workload", "tokenize", str(texts), str(model), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "40 texts" in done.output
    assert "--data" in done.output


def test_bytes_are_refused_beside_a_tokenizer(model, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "check_weights", lambda *_: None)  # the folder has no weights
    workload = preset("tiny-gpt").replace(transformer=preset("tiny-gpt").transformer.replace(vocab=400))
    plan = chain_plan([workload.num_micro_batches], [], workload=workload)
    for data in (None, str(texts)):
        assert is_bytes(data, workload)
        with pytest.raises(InvalidInput, match=r"is read as bytes, .*: hetplanner workload tokenize TEXT"):
            resuming.check_init_from(plan, TrainConfig(init_from=str(model), data=data), is_here=True)
    write_tokens(texts, model, tmp_path / "out")
    config = TrainConfig(init_from=str(model), data=str(tmp_path / "out"))
    resuming.check_init_from(plan, config, is_here=True)
