"""Token files: ids of a tokenizer as plain uint16 or uint32, little-endian, mapped and never loaded whole.

nanoGPT's convention: a folder with train.bin and, if wanted, val.bin; or one .bin. They are uint16 unless a JSON
file of the same name says more: `{"format": "hetplanner/tokens@1", "dtype": "uint32", "vocab": 128256}`.

Format 2 knows documents: `train.documents` holds where each begins and where the last ends (int64, little-endian), and
`train.answers` a byte for every token, 0 where it is not to be learnt. The JSON says which of the two there are.
"""

from pathlib import Path
from typing import Literal

import numpy as np

from hetplanner.data.documents import Documents, PackedDocuments, split_documents
from hetplanner.data.interface import DataKind, Source
from hetplanner.data.need import TokenNeed
from hetplanner.data.pairs import PairedDocuments
from hetplanner.data.windows import CHUNK_TOKENS, ArrayStream, split_windows
from hetplanner.errors import InvalidInput
from hetplanner.schema import Noun, checked_json, read_text
from hetplanner.workload.task import Continuation, Pairs
from hetplanner.workload.transformer import Size

TRAIN = "train.bin"
VALIDATION = ("val.bin", "validation.bin")
LEARNS = {"hidden tokens": "tokens that are hidden from it", "continuation": "to go on with a text"}
DOCUMENTS, ANSWERS = ".documents", ".answers"
"""Endings of the files beside a .bin."""


class TokensInfo(Noun):
    """What the JSON file beside a .bin says.

    Attributes:
        vocab: ids that its tokenizer has; None if it does not say.
        documents, answers: whether there is such a file beside it.
    """

    dtype: Literal["uint16", "uint32"] = "uint16"
    vocab: Size | None = None
    documents: bool = False
    answers: bool = False


def open_tokens(path: Path, need: TokenNeed) -> Source:
    """Maps the files. Raises InvalidInput: empty, cut off, too short, or of a larger vocabulary than the model's."""
    train = path / TRAIN if path.is_dir() else path
    validation = next((p for name in VALIDATION if (p := path / name).is_file()), None)
    files = [train] if validation is None else [train, validation]
    infos = [_info(file, need) for file in files]
    if len({(info.documents, info.answers) for info in infos}) > 1:
        raise InvalidInput(f"data: {path}: only one of its files has documents or answers; tokenize it anew")
    if infos[0].documents:
        found = [_documents(file, info, need) for file, info in zip(files, infos, strict=True)]
        packed = split_documents(str(path), need, found[0], found[1] if validation else None)
        if infos[0].answers and need.task is not None:
            return _pairs(packed, need)
        if need.ignores_labels:
            return packed
        return packed.unpacked(
            f"the loss of {need.workload} is no sum of cross-entropies that ignores -100; capture a module that returns"
            " logits"
        )
    streams = [ArrayStream(_mapped(file, info.dtype)) for file, info in zip(files, infos, strict=True)]
    return split_windows(str(path), need, streams[0], streams[1] if validation else None)


def _pairs(packed: PackedDocuments, need: TokenNeed) -> PairedDocuments:
    """Documents with answers as pairs. Raises InvalidInput: the model learns something else."""
    if isinstance(need.task, Pairs):
        return PairedDocuments(packed.name, need, need.task, packed.train, packed.validation)
    assert need.task is not None
    remedy = (
        "capture it anew for pairs: hetplanner workload capture CONFIG --pairs"
        if isinstance(need.task, Continuation)
        else "give texts"
    )
    raise InvalidInput(
        f"data: {packed.name} marks answers, and workload {need.workload} learns {LEARNS[need.task.kind]}; {remedy}"
    )


def _documents(path: Path, info: TokensInfo, need: TokenNeed) -> Documents:
    """A file of tokens with what stands beside it. Raises InvalidInput: the files do not fit together."""
    ids = _mapped(path, info.dtype)
    if not len(ids):
        return Documents(ids, np.zeros(1, dtype=np.int64), None, need.seq_len)
    start_D = _mapped(path.with_suffix(DOCUMENTS), "int64")
    answers = _mapped(path.with_suffix(ANSWERS), "uint8") if info.answers else None
    is_rising = len(start_D) > 1 and all(
        (np.diff(start_D[first : first + CHUNK_TOKENS + 1]) > 0).all() for first in range(0, len(start_D), CHUNK_TOKENS)
    )
    if not (is_rising and start_D[0] == 0 and start_D[-1] == len(ids)):
        raise InvalidInput(
            f"data: {path.with_suffix(DOCUMENTS)}: must rise from 0 to the {len(ids)} tokens of {path.name}; tokenize"
            " anew"
        )
    if answers is not None and len(answers) != len(ids):
        raise InvalidInput(
            f"data: {path.with_suffix(ANSWERS)}: must have a byte for each of the {len(ids)} tokens of {path.name}, got"
            f" {len(answers)}; tokenize anew"
        )
    # Slices of np.memmap are slow to make.
    marks = None if answers is None else answers.view(np.ndarray)
    return Documents(ids.view(np.ndarray), start_D.view(np.ndarray), marks, need.seq_len)


def _mapped(path: Path, dtype_name: str) -> np.ndarray:
    dtype = np.dtype(dtype_name).newbyteorder("<")
    try:
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise InvalidInput(
                f"data: {path} has {size} bytes, no whole number of {dtype_name}; it is cut off, or of another type"
                f" (say so in {path.with_suffix('.json').name})"
            )
        # An empty file cannot be mapped; it holds no tokens, which is refused with the remedy later.
        return np.memmap(path, dtype, mode="r") if size else np.empty(0, dtype)
    except OSError as error:
        raise InvalidInput(f"data: {path} cannot be read: {error.strerror}; make it readable") from None


def _info(path: Path, need: TokenNeed) -> TokensInfo:
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return TokensInfo()
    info = checked_json(TokensInfo, read_text(beside), "tokens", 2, beside.name, from_file=True)
    if info.vocab is not None and need.vocab is not None and info.vocab > need.vocab:
        raise InvalidInput(
            f"data: {beside}: vocab must be at most the {need.vocab} of workload {need.workload}, got {info.vocab};"
            " take the model's own tokenizer"
        )
    if info.answers and not info.documents:
        raise InvalidInput(f"data: {beside}: answers: must come with documents; tokenize anew")
    return info


def _accepts(path: Path) -> bool:
    return (path / TRAIN).is_file() if path.is_dir() else path.suffix.lower() == ".bin"


TOKENS = DataKind(
    "tokens", f"token ids in a .bin file, or a folder with {TRAIN} and val.bin", "tokens", _accepts, open_tokens
)
