"""Token files: ids of a tokenizer as plain uint16 or uint32, little-endian, mapped and never loaded whole.

nanoGPT's convention: a folder with train.bin and, if wanted, val.bin; or one .bin. They are uint16 unless a JSON
file of the same name says more: `{"format": "hetplanner/tokens@1", "dtype": "uint32", "vocab": 128256}`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from hetplanner.data.interface import DataKind
from hetplanner.data.need import TokenNeed
from hetplanner.data.windows import Windows, split_windows
from hetplanner.errors import InvalidInput
from hetplanner.schema import Noun, check_format, checked, parse_json, read_text
from hetplanner.workload.transformer import Size

TRAIN = "train.bin"
VALIDATION = ("val.bin", "validation.bin")


class TokensInfo(Noun):
    """What the JSON file beside a .bin says.

    Attributes:
        vocab: ids that its tokenizer has; None if it does not say.
    """

    dtype: Literal["uint16", "uint32"] = "uint16"
    vocab: Size | None = None


@dataclass(frozen=True)
class TokenFile:
    """A mapped file of ids."""

    ids: np.ndarray

    @property
    def num_tokens(self) -> int:
        """How many."""
        return len(self.ids)

    def read(self, first: int, count: int) -> np.ndarray:
        """Ids [count] from `first` on."""
        return self.ids[first : first + count]


def open_tokens(path: Path, need: TokenNeed) -> Windows:
    """Maps the files. Raises InvalidInput: empty, cut off, too short, or of a larger vocabulary than the model's."""
    folder_train = path / TRAIN
    train = folder_train if path.is_dir() else path
    validation = next((p for name in VALIDATION if (p := path / name).is_file()), None)
    return split_windows(
        str(path), need, _mapped(train, need), None if validation is None else _mapped(validation, need)
    )


def _mapped(path: Path, need: TokenNeed) -> TokenFile:
    info = _info(path)
    if info.vocab is not None and need.vocab is not None and info.vocab > need.vocab:
        raise InvalidInput(
            f"data: {path.with_suffix('.json')}: vocab must be at most the {need.vocab} of workload {need.workload},"
            f" got {info.vocab}; take the model's own tokenizer"
        )
    dtype = np.dtype(info.dtype).newbyteorder("<")
    try:
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise InvalidInput(
                f"data: {path} has {size} bytes, no whole number of {info.dtype}; it is cut off, or of another type"
                f" (say so in {path.with_suffix('.json').name})"
            )
        # An empty file cannot be mapped; it holds no tokens, which is refused with the remedy later.
        return TokenFile(np.memmap(path, dtype, mode="r") if size else np.empty(0, dtype))
    except OSError as error:
        raise InvalidInput(f"data: {path} cannot be read: {error.strerror}; make it readable") from None


def _info(path: Path) -> TokensInfo:
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return TokensInfo()
    fields = check_format(parse_json(read_text(beside), beside.name), "tokens", 1, beside.name)
    return checked(TokensInfo, fields, beside.name, from_file=True)


def _claims(path: Path) -> bool:
    return (path / TRAIN).is_file() if path.is_dir() else path.suffix.lower() == ".bin"


TOKENS = DataKind(
    "tokens", f"token ids in a .bin file, or a folder with {TRAIN} and val.bin", "tokens", _claims, open_tokens
)
