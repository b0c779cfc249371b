"""Packed documents: against transformers' collator, and a model on them against the same documents one by one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import DataCollatorWithFlattening

from hetplanner.data.documents import IGNORED, PADDING, PackedDocuments
from hetplanner.data.registry import check_data, open_data, open_stream
from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import Batch, StageModel
from hetplanner.runtime.train.data import open_batches
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.workload import Workload
from tests.support.models.packed_data import Document, documents_folder, some_documents
from tests.support.plans.factories import tiny_workload

T = 32
GPT = tiny_workload(layers=2, global_batch=8)
LLAMA = GPT.replace(
    transformer=GPT.transformer.replace(family="llama", heads=4, kv_heads=1, tie_embeddings=False, hidden=32)
)
DOCUMENTS = some_documents(200)


def opened(folder: Path) -> PackedDocuments:
    source = open_data(str(folder), GPT)
    assert isinstance(source, PackedDocuments)
    return source


def everything(source: PackedDocuments, part: str) -> np.ndarray:
    return getattr(source.train, part)(np.arange(source.num_samples("train")))


def collated(documents: list[Document]) -> tuple[list[int], list[int], list[int]]:
    """Ids, targets one place on and positions of documents in one sequence, as transformers makes them."""
    rows = [
        {"input_ids": list(ids), "labels": [i if learnt else IGNORED for i, learnt in zip(ids, marks, strict=True)]}
        for ids, marks in documents
    ]
    batch = DataCollatorWithFlattening(return_tensors="pt")(rows)
    targets = [*batch["labels"][0].tolist()[1:], IGNORED]
    return batch["input_ids"][0].tolist(), targets, batch["position_ids"][0].tolist()


def positions(documents_T: np.ndarray) -> list[int]:
    return [int(t - np.flatnonzero(documents_T == d)[0]) for t, d in enumerate(documents_T)]


def test_conversations_stay_whole_and_their_targets_are_those_of_transformers(tmp_path: Path) -> None:
    short = [document for document in DOCUMENTS if len(document[0]) <= T]
    source = opened(documents_folder(tmp_path / "data", short, short[:3]))
    inputs_ST, labels_ST, documents_ST = (everything(source, part) for part in ("inputs", "labels", "documents"))
    left = list(short)
    for inputs_T, labels_T, documents_T in zip(inputs_ST, labels_ST, documents_ST, strict=True):
        taken: list[Document] = []
        while left and sum(len(ids) for ids, _ in taken) + len(left[0][0]) <= T:
            taken.append(left.pop(0))
        ids, targets, places = collated(taken)
        assert inputs_T.tolist() == ids + [PADDING] * (T - len(ids))
        assert labels_T.tolist() == targets + [IGNORED] * (T - len(ids))
        assert positions(documents_T)[: len(ids)] == places
        assert (documents_T[len(ids) :] > documents_T[len(ids) - 1]).all(), "padding is a document of its own"
    assert not left
    assert source.train.num_labels(np.arange(len(labels_ST))) == (labels_ST != IGNORED).sum()


def test_texts_fill_every_sequence_and_go_on_in_the_next(tmp_path: Path) -> None:
    source = opened(documents_folder(tmp_path / "data", DOCUMENTS, DOCUMENTS[:3], answers=False))
    ids, targets, _ = collated([(ids, [1] * len(ids)) for ids, _ in DOCUMENTS])
    inputs_ST, labels_ST, documents_ST = (everything(source, part) for part in ("inputs", "labels", "documents"))
    assert len(inputs_ST) == -(-len(ids) // T)
    assert inputs_ST.ravel()[: len(ids)].tolist() == ids
    assert labels_ST.ravel().tolist() == targets + [IGNORED] * (labels_ST.size - len(ids))
    number = np.repeat(np.arange(len(DOCUMENTS)), [len(ids) for ids, _ in DOCUMENTS])
    for s, documents_T in enumerate(documents_ST):
        mine = number[s * T : (s + 1) * T]
        assert documents_T[: len(mine)].tolist() == (mine - mine[0]).tolist()
    for some in (np.arange(5), np.array([len(inputs_ST) - 1])):
        assert source.train.num_labels(some) == (labels_ST[some] != IGNORED).sum()


def test_a_conversation_longer_than_a_sequence_is_cut_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    long = (list(range(100)), [0] * 10 + [1] * 90)
    source = opened(documents_folder(tmp_path / "data", [DOCUMENTS[0], long, DOCUMENTS[1]], DOCUMENTS[:3]))
    labels_ST = everything(source, "labels")
    learnt = sum(sum(marks[1:]) for _, marks in (DOCUMENTS[0], long, DOCUMENTS[1]))
    assert (labels_ST != IGNORED).sum() == learnt
    assert set(range(10, 100)) <= set(labels_ST.ravel().tolist())
    assert source.train.num_labels(np.arange(len(labels_ST))) == learnt


@pytest.mark.parametrize("workload", [GPT, LLAMA], ids=["gpt2", "llama"])
def test_a_model_sees_each_document_as_if_it_were_alone(workload: Workload, tmp_path: Path) -> None:
    batches = open_batches(TrainConfig(data=str(documents_folder(tmp_path / "data", DOCUMENTS))), workload)
    model = StageModel(workload, 0, len(workload.graph.ops), 3)
    batch = batches.draw(0, 1)
    assert batch.documents is not None
    packed = model.forward(None, batch).item()
    alone, count = 0.0, 0
    for inputs_T, labels_T, documents_T in zip(*batch, strict=True):
        for d in documents_T.unique():
            mine = documents_T == d
            one = model.stage_ops.compute([], Batch(inputs_T[None, mine], labels_T[None, mine]), None)
            alone += one[0].item()
            count += int((labels_T[mine] != IGNORED).sum())
    assert packed == pytest.approx(alone, abs=2e-4)
    assert count == batches.num_labels(0, [1])
    together = model.forward(None, Batch(batch.inputs, batch.labels)).item()
    assert abs(packed - together) > 2e-3, "with attention across documents it is another number"


def test_the_reference_is_the_mean_over_targets_of_a_plain_loop(tmp_path: Path) -> None:
    config = TrainConfig(steps=4, data=str(documents_folder(tmp_path / "data", DOCUMENTS)), learning_rate=1e-2)
    _, losses = train_reference(GPT, config)
    batches, model = open_batches(config, GPT), StageModel(GPT, 0, len(GPT.graph.ops), config.seed)
    decayed = [{"params": [w for w in model.parameters if w.ndim >= 2], "weight_decay": config.weight_decay}]
    others = [{"params": [w for w in model.parameters if w.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(decayed + others, lr=config.learning_rate, betas=config.betas)
    for step in range(config.steps):
        parts = [batches.draw(step, m) for m in range(GPT.num_micro_batches)]
        whole = Batch(*(torch.cat(part) for part in zip(*parts, strict=True)))
        ops = model.stage_ops
        logits = ops.modules[-2](_up_to_the_head(ops, whole))
        loss = functional.cross_entropy(logits.flatten(0, 1), whole.labels.flatten(), ignore_index=IGNORED)
        assert losses[step] == pytest.approx(loss.item(), abs=2e-5)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def _up_to_the_head(ops, batch: Batch) -> torch.Tensor:
    from hetplanner.runtime.model.modules import DocumentMask

    mask = DocumentMask.of(batch.documents)
    x = ops.modules[0](batch.inputs, None, mask)
    for module in ops.modules[1:-2]:
        x = module(x, None, mask) if "Attention" in type(module).__name__ else module(x)
    return x


def test_without_held_out_documents_the_last_tenth_is(tmp_path: Path) -> None:
    source = opened(documents_folder(tmp_path / "data", DOCUMENTS))
    assert (source.train.num_documents, source.validation.num_documents) == (180, 20)
    first = DOCUMENTS[180][0][:T]
    assert source.inputs("validation", np.array([0]))[0, : len(first)].tolist() == first
    alone = opened(documents_folder(tmp_path / "one", DOCUMENTS[:1]))
    assert alone.train.num_documents == alone.validation.num_documents == 1


def test_an_epoch_takes_every_sequence_once_whoever_draws_and_wherever_it_begins(tmp_path: Path) -> None:
    config = TrainConfig(data=str(documents_folder(tmp_path / "data", DOCUMENTS)), seed=5)
    batches = open_batches(config, GPT)
    count = batches.source.num_samples("train")
    calls = [(i // GPT.num_micro_batches, i % GPT.num_micro_batches) for i in range(-(-count // GPT.micro_batch))]
    taken = np.concatenate([batches.sample_ids(*call) for call in calls])
    assert sorted(taken[:count].tolist()) == list(range(count))
    assert taken[:count].tolist() != list(range(count))
    again = open_batches(config, GPT)  # as after a resume: nothing was drawn before
    for call in calls[-3:]:
        mine, theirs = batches.draw(*call), again.draw(*call)
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_for_a_swarm_documents_are_one_text_and_answers_are_refused(tmp_path: Path) -> None:
    source = open_stream(str(documents_folder(tmp_path / "texts", DOCUMENTS, answers=False)), GPT)
    ids = [i for document, _ in DOCUMENTS for i in document]
    assert source.labels("train", np.array([0]))[0].tolist() == ids[1 : T + 1]
    with pytest.raises(InvalidInput, match=r"marks answers, .* but a swarm learns every token; train a static plan"):
        open_stream(str(documents_folder(tmp_path / "chats", DOCUMENTS)), GPT)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.documents", b"", r"train\.documents: must rise from 0 to the \d+ tokens of train\.bin; tokenize anew"),
        ("train.documents", np.array([0, 7, 5], "<i8").tobytes(), "must rise from 0"),
        ("train.documents", np.array([0, 2**40], "<i8").tobytes(), "must rise from 0"),
        ("train.documents", b"123", "no whole number of int64"),
        ("train.answers", b"\1\1", r"train\.answers: must have a byte for each of the \d+ tokens of train\.bin, got 2"),
        ("train.json", b'{"format": "hetplanner/tokens@2", "answers": true}', "answers: must come with documents"),
        ("train.json", b'{"format": "hetplanner/tokens@3"}', "newer than this hetplanner reads"),
        ("train.bin", b"", "holds 0 tokens to train on"),
        ("val.json", b'{"format": "hetplanner/tokens@2"}', "only one of its files has documents or answers"),
    ],
)
def test_broken_documents_are_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    folder = documents_folder(tmp_path / "data", DOCUMENTS, DOCUMENTS[:3])
    (folder / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        check_data(str(folder), GPT)


def test_data_without_anything_to_learn_is_refused(tmp_path: Path) -> None:
    folder = documents_folder(tmp_path / "data", [(ids, [0] * len(ids)) for ids, _ in DOCUMENTS])
    with pytest.raises(InvalidInput, match="marks no token as an answer"):
        check_data(str(folder), GPT)
    info = json.loads((folder / "train.json").read_text()) | {"vocab": 300}
    (folder / "train.json").write_text(json.dumps(info))
    with pytest.raises(InvalidInput, match="vocab must be at most the 256 of workload test-gpt, got 300"):
        check_data(str(folder), GPT)
