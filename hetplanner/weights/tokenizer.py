"""How many words a model folder's tokenizer knows; read from its JSON files, never run."""

from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import parse_json, read_text

TOKENIZER, VOCAB, ADDED = "tokenizer.json", "vocab.json", "added_tokens.json"
FILES = (
    TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", VOCAB, "merges.txt", ADDED, "tokenizer.model",
    "spiece.model", "vocab.txt", "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
)  # fmt: skip
"""What belongs to a tokenizer or an image processor, to be kept beside the weights."""
MAX_TOKENIZER_BYTES = 64 * 2**20


@reader("tokenizer", at="folder")
def num_words(folder: Path) -> int | None:
    """One more than the greatest id that the tokenizer gives; None without a file that tells it.

    Raises:
        InvalidInput: a file that is no tokenizer.
    """
    if (folder / TOKENIZER).exists():
        data = _object(folder / TOKENIZER)
        model = data.get("model")
        vocab = model.get("vocab") if isinstance(model, dict) else None
        added = [entry.get("id") for entry in data.get("added_tokens") or () if isinstance(entry, dict)]
        ids = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab or ())))
        return _greatest([*ids, *added], TOKENIZER)
    if (folder / VOCAB).exists():
        ids = list(_object(folder / VOCAB).values())
        if (folder / ADDED).exists():
            ids += _object(folder / ADDED).values()
        return _greatest(ids, VOCAB)
    return None


def _object(path: Path) -> dict[str, Any]:
    data = parse_json(read_text(path, MAX_TOKENIZER_BYTES), path.name)
    if not isinstance(data, dict):
        raise InvalidInput(f"{path.name}: must be a JSON object, got {type(data).__name__}")
    return data


def _greatest(ids: list[Any], place: str) -> int | None:
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise InvalidInput(f"{place}: ids of words must be whole numbers from 0; take a new copy")
    return max(ids) + 1 if ids else None
