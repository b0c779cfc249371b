"""Instructions and chats as token files: answers are those that transformers marks; hostile templates do no harm."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.data.tokenizing import chat_template
from hetplanner.data.tokenizing.records import Columns
from hetplanner.data.tokenizing.writing import write_tokens
from hetplanner.errors import InvalidInput

SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]
WITH_MARKS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}<|user|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITHOUT_MARKS = WITH_MARKS.replace("{% generation %}", "").replace("{% endgeneration %}", "")
ROWS = [{"question": f"What is {n} + {n}, naïve one?", "reply": f"It is {2 * n}, café."} for n in range(30)]
CHATS = [
    [
        {"role": "user", "content": row["question"]},
        {"role": "assistant", "content": row["reply"]},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes, ½."},
    ]
    for row in ROWS
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a byte-level tokenizer whose text ends with id 0, and a chat template with marks."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=350, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([row["question"] + row["reply"] for row in ROWS], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "eos_token_id": 0}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|end|>"}}))
    (folder / "chat_template.jinja").write_text(WITH_MARKS)
    return folder


def json_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(folder: Path, name: str) -> list[tuple[list[int], list[int]]]:
    """Documents of a split: ids, and what is to be learnt."""
    ids = np.fromfile(folder / f"{name}.bin", dtype="<u2")
    start_D = np.fromfile(folder / f"{name}.documents", dtype="<i8")
    answers = folder / f"{name}.answers"
    marks = np.fromfile(answers, dtype=np.uint8) if answers.exists() else np.ones(len(ids), dtype=np.uint8)
    return [(ids[a:b].tolist(), marks[a:b].tolist()) for a, b in pairwise(start_D)]


def all_rows(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Both splits in the order of the rows; every tenth is held out."""
    train, held_out = read(folder, "train"), read(folder, "val")
    return [held_out.pop(0) if n % 10 == 9 else train.pop(0) for n in range(len(train) + len(held_out))]


def test_of_an_instruction_the_answer_is_learnt(model: Path, tmp_path: Path) -> None:
    columns = Columns(prompt="question", answer="reply")
    written = write_tokens(json_lines(tmp_path / "a.jsonl", ROWS), model, tmp_path / "out", columns=columns)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"))
    found = all_rows(tmp_path / "out")
    for row, (ids, marks) in zip(ROWS, found, strict=True):
        prompt, answer = theirs.encode(row["question"]), [*theirs.encode(row["reply"]), 0]
        assert ids == prompt + answer
        assert marks == [0] * len(prompt) + [1] * len(answer)
    assert written.texts == 30
    assert written.answers == sum(sum(marks) for _, marks in found)


@pytest.mark.parametrize("template", [WITH_MARKS, WITHOUT_MARKS], ids=["marks", "no marks"])
def test_of_a_chat_what_the_assistant_says_is_learnt_as_transformers_marks_it(
    template: str, model: Path, tmp_path: Path
) -> None:
    (model / "chat_template.jinja").write_text(template)
    table = json_lines(tmp_path / "chats.jsonl", [{"messages": chat, "id": n} for n, chat in enumerate(CHATS)])
    write_tokens(table, model, tmp_path / "out")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"), eos_token="<|end|>")
    for chat, (ids, marks) in zip(CHATS, all_rows(tmp_path / "out"), strict=True):
        expected = theirs.apply_chat_template(
            chat, chat_template=WITH_MARKS, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == expected["input_ids"]
        assert marks == expected["assistant_masks"]


def test_every_kind_of_table_gives_the_same(model: Path, tmp_path: Path) -> None:
    rows = [{"messages": chat, "text": chat[0]["content"]} for chat in CHATS]
    saved = Dataset.from_list(rows)
    saved.save_to_disk(tmp_path / "saved")
    DatasetDict(train=saved, test=saved).save_to_disk(tmp_path / "splits")
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "shards").mkdir()
    json_lines(tmp_path / "shards" / "0.jsonl", rows[:13])
    parquet.write_table(pa.Table.from_pylist(rows[13:]), tmp_path / "shards" / "1.parquet")
    for columns in (None, Columns(text="text")):
        found = []
        for name in ("saved", "splits", "a.parquet", "shards"):
            out = tmp_path / f"{name}-{columns is None}"
            write_tokens(tmp_path / name, model, out, columns=columns)
            found.append(all_rows(out))
        assert all(one == found[0] for one in found)
    assert found[0][0][0][-1] == 0, "a text ends with the end of text"


def test_what_is_wrong_with_a_table_is_said_and_nothing_is_left(model: Path, tmp_path: Path) -> None:
    def refused(words: str, rows: Any, columns: Columns | None = None) -> None:
        path = tmp_path / "a.jsonl"
        if isinstance(rows, str):
            path.write_text(rows)
        else:
            json_lines(path, rows)
        with pytest.raises(InvalidInput, match=words) as caught:
            write_tokens(path, model, tmp_path / "out", columns=columns)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()

    refused("has no column 'body'; it has question, reply", ROWS, Columns(text="body"))
    refused("has the columns question, reply; name what to read: --column, --prompt-column with", ROWS)
    refused("line 2: has no 'text'; it has question, reply", [{"text": "a"}, ROWS[0]])
    refused("line 2: is no JSON", '{"text": "a"}\n{"text"')
    refused(r"line 1: must be a JSON object, got list", "[1]\n")
    refused("line 1: text must be a text, got int", [{"text": 3}])
    refused('line 1: messages must be a list of messages {"role": …, "content": …}', [{"messages": "hello"}])
    refused("holds no text", [{"text": ""}])
    refused("holds no answer, so there is nothing to learn", [{"messages": CHATS[0][:1]}])
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidInput, match=r"b\.parquet: is no Parquet file"):
        write_tokens(tmp_path / "b.parquet", model, tmp_path / "out")
    with pytest.raises(InvalidInput, match="must come together"):
        Columns(prompt="question")
    with pytest.raises(InvalidInput, match="not both"):
        Columns(text="a", messages="b")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "TypeError|no loader"),
        ("{% for a in messages %}{{ raise_exception('roles must alternate') }}{% endfor %}", "roles must alternate"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ messages[-1].content }}", "changes what stands around it, so answers cannot be found; mark them"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "takes more than 2 s"),
        ("{{ 'x' * 10**10 }}", "MemoryError|takes more than"),
    ],
)
def test_a_hostile_chat_template_does_no_harm(
    template: str, message: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "TEMPLATE_S", 2.0)
    (model / "chat_template.jinja").write_text(template)
    table = json_lines(tmp_path / "chats.jsonl", [{"messages": CHATS[0]}])
    with pytest.raises(InvalidInput, match=message) as caught:
        write_tokens(table, model, tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_template_is_found_where_models_have_it(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").unlink()
    with pytest.raises(InvalidInput, match="has no chat template"):
        chat_template.load_template(model)
    for said in (WITH_MARKS, [{"name": "tools", "template": ""}, {"name": "default", "template": WITH_MARKS}]):
        (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": said, "bos_token": "<s>"}))
        assert chat_template.load_template(model) == (WITH_MARKS, {"bos_token": "<s>"})


def test_the_command_says_how_much_is_learnt(model: Path, tmp_path: Path) -> None:
    table, out = json_lines(tmp_path / "a.jsonl", ROWS), tmp_path / "out"
    options = ["--prompt-column", "question", "--answer-column", "reply", "-o", str(out)]
    done = CliRunner().invoke(app, ["workload", "tokenize", str(table), str(model), *options])
    assert done.exit_code == 0, done.output
    assert "tokens are answers, which alone are learnt" in " ".join(done.output.split())
    (tmp_path / "again").mkdir()
    wrong = ["workload", "tokenize", str(table), str(model), "--column", "body", "-o", str(tmp_path / "again")]
    done = CliRunner().invoke(app, wrong)
    assert "has no column 'body'" in str(done.exception)
