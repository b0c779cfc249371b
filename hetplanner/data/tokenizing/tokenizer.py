"""The tokenizer of a Hugging Face model folder: `tokenizer.json`, read by `tokenizers`; no code of the folder runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import parse_json, read_text

TOKENIZER = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64 * 2**20

Span = tuple[int, int]
"""First and end place of some characters of a text."""


@dataclass(frozen=True)
class Marked:
    """A text of which some is to be learnt.

    Attributes:
        text: whole.
        answers: the characters to be learnt, in order.
    """

    text: str
    answers: tuple[Span, ...]


@reader("tokenizer", at="model")
def load_tokenizer(model: Path) -> tuple[Any, int | None]:
    """A folder's tokenizer, and the id that ends a text.

    Args:
        model: folder with tokenizer.json and perhaps config.json.

    Raises:
        InvalidInput: there is none, it is damaged, or tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InvalidInput("tokenizing needs tokenizers; install it: pip install 'hetplanner[hf]'") from None
    path = model / TOKENIZER
    if not path.is_file():
        raise InvalidInput(
            f"{model}: has no {TOKENIZER}; save one there: AutoTokenizer.from_pretrained(…).save_pretrained(folder)"
        )
    text = read_text(path, MAX_TOKENIZER_BYTES)
    try:
        tokenizer = Tokenizer.from_buffer(text)
    except Exception as error:  # the library raises Exception itself
        raise InvalidInput(f"{path}: is no tokenizer: {error!s:.200}") from None
    tokenizer.no_truncation()  # its file may hold the length that a model was trained with
    tokenizer.no_padding()
    return tokenizer, _end_of_text(model, num_words(tokenizer))


def num_words(tokenizer: Any) -> int:
    """One more than its greatest id."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


@reader("model config", at="model")
def _end_of_text(model: Path, vocab: int) -> int | None:
    if not (model / "config.json").is_file():
        return None
    fields = parse_json(read_text(model / "config.json"), "config.json")
    found = fields.get("eos_token_id") if isinstance(fields, dict) else None
    found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < vocab else None


@reader("model config", at="model")
def writes_special_tokens(model: Path) -> bool:
    """Whether pairs for the model have the tokens that its tokenizer adds around a text: of encoder-decoder models."""
    if not (model / "config.json").is_file():
        return False
    fields = parse_json(read_text(model / "config.json"), "config.json")
    return isinstance(fields, dict) and fields.get("is_encoder_decoder") is True


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text, without those that a tokenizer adds around it. Raises InvalidInput: it has none for a word."""
    (found,) = _encoded(tokenizer, [text])
    ids: list[int] = found.ids
    return ids


def ids_of_all(tokenizer: Any, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
    """The ids of several texts, on all cores; with `special` also those around them. Raises InvalidInput."""
    return [found.ids for found in _encoded(tokenizer, texts, special=special)]


def ids_of_marked(tokenizer: Any, texts: Sequence[Marked]) -> list[tuple[list[int], np.ndarray]]:
    """The ids of texts, and which of them have characters of an answer (uint8); special tokens are read as such.

    Source: `apply_chat_template(return_assistant_tokens_mask=True)` of transformers marks the same.
    """
    found = []
    for marked, encoded in zip(texts, _encoded(tokenizer, [marked.text for marked in texts]), strict=True):
        begin_N, end_N = np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2).T
        answers_N = np.zeros(len(begin_N), dtype=np.uint8)
        for first, end in marked.answers:
            answers_N |= (begin_N < end) & (end_N > first)
        found.append((encoded.ids, answers_N))
    return found


def _encoded(tokenizer: Any, texts: Sequence[str], *, special: bool = False) -> list[Any]:
    try:
        found: list[Any] = tokenizer.encode_batch(list(texts), add_special_tokens=special)
    except Exception as error:  # the library raises Exception itself
        raise InvalidInput(f"{TOKENIZER}: cannot read the text: {error!s:.200}") from None
    return found
