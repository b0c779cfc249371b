"""Folders of documents with answers, as `workload tokenize` writes them, made of any ids."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

Document = tuple[Sequence[int], Sequence[int]]
"""Ids, and 1 for those that are to be learnt."""


def some_documents(count: int, *, vocab: int = 256, longest: int = 40, seed: int = 0) -> list[Document]:
    """Questions and answers: a rising run of ids is given, and its continuation is learnt."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        length = int(random.integers(2, longest))
        prompt = int(random.integers(1, length))
        ids = (int(random.integers(vocab)) + np.arange(length)) % vocab
        found.append((ids.tolist(), [0] * prompt + [1] * (length - prompt)))
    return found


def documents_folder(
    folder: Path,
    train: Sequence[Document],
    held_out: Sequence[Document] = (),
    *,
    answers: bool = True,
    vocab: int = 256,
) -> Path:
    """The folder; without `answers` all tokens are learnt."""
    folder.mkdir()
    for name, documents in (("train", train), ("val", held_out)):
        if not documents:
            continue
        np.concatenate([ids for ids, _ in documents]).astype("<u2").tofile(folder / f"{name}.bin")
        np.cumsum([0, *(len(ids) for ids, _ in documents)]).astype("<i8").tofile(folder / f"{name}.documents")
        if answers:
            np.concatenate([learnt for _, learnt in documents]).astype(np.uint8).tofile(folder / f"{name}.answers")
        info = {
            "format": "hetplanner/tokens@2",
            "dtype": "uint16",
            "vocab": vocab,
            "documents": True,
            "answers": answers,
        }
        (folder / f"{name}.json").write_text(json.dumps(info))
    return folder
