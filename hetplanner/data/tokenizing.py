"""Text as token files, by the tokenizer of a Hugging Face model folder (`tokenizer.json`, read by `tokenizers`).

The files are those of `tokens.py`: train.bin, val.bin, and a JSON beside each. A text longer than PIECE_CHARACTERS is
cut where a line ends, so memory does not grow with it. Behind every text stands the model's end-of-text id, if
`config.json` names one.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from hetplanner.data.interface import is_held_out
from hetplanner.data.text import SUFFIXES, text_files
from hetplanner.data.tokens import TRAIN, VALIDATION
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import parse_json, read_text

TOKENIZER = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64 * 2**20
PIECE_CHARACTERS = 2**20
HELD_OUT_PIECES = 10
"""Where no file is held out, every tenth piece of the text is for validation."""


@dataclass
class Written:
    """What was written: tokens by file name, the tokenizer's words, and texts so far."""

    vocab: int
    texts: int = 0
    tokens: dict[str, int] = field(default_factory=dict)


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
    return tokenizer, _end_of_text(model, _words(tokenizer))


def _words(tokenizer: Any) -> int:
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


def write_tokens(text: Path, model: Path, out: Path, advance: Callable[[Written], None] = lambda _: None) -> Written:
    """Writes a folder of token files; whole, or nothing.

    Args:
        text: a text file, or a folder of them. About a tenth of the files (by their names) is for validation.
        model: folder of the tokenizer.
        out: new or empty folder.
        advance: called after every piece of text.

    Raises:
        InvalidInput: no text, a file that is not UTF-8, no tokenizer, or a folder that holds something.
        OSError: the folder cannot be written.
    """
    tokenizer, end = load_tokenizer(model)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(f"{out}: holds something; give a new or an empty folder")
    draft = out.with_name(f".{out.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        written = _write(text, tokenizer, end, draft, advance)
        if not written.tokens.get(TRAIN):
            raise InvalidInput(f"{text}: holds no text ({', '.join(sorted(SUFFIXES))}); add some")
        if out.exists():
            out.rmdir()
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return written


def _write(text: Path, tokenizer: Any, end: int | None, folder: Path, advance: Callable[[Written], None]) -> Written:
    paths = text_files(text)
    root = text if text.is_dir() else text.parent
    held_out = {path for path in paths if is_held_out(path.relative_to(root).as_posix())}
    by_file = 0 < len(held_out) < len(paths)
    written = Written(_words(tokenizer))
    dtype = np.dtype("<u2" if written.vocab <= 2**16 else "<u4")
    names = (TRAIN, VALIDATION[0])
    with (folder / TRAIN).open("wb") as train, (folder / names[1]).open("wb") as validation:
        files: tuple[IO[bytes], IO[bytes]] = (train, validation)
        number = 0
        for path in paths:
            for piece, is_last in _pieces(path):
                number += 1
                which = int(path in held_out if by_file else number % HELD_OUT_PIECES == 0)
                ids = ids_of(tokenizer, piece)
                ids += [end] if is_last and end is not None else []
                files[which].write(np.array(ids, dtype=dtype).tobytes())
                written.tokens[names[which]] = written.tokens.get(names[which], 0) + len(ids)
                written.texts += is_last
                advance(written)
    for name in names:
        path = folder / name
        if not path.stat().st_size:  # too little text for two splits: the runtime cuts one
            path.unlink()
            continue
        info = {"format": "hetplanner/tokens@1", "dtype": {2: "uint16", 4: "uint32"}[dtype.itemsize]}
        path.with_suffix(".json").write_text(json.dumps(info | {"vocab": written.vocab}) + "\n", encoding="utf-8")
    return written


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text, without those that a tokenizer adds around it. Raises InvalidInput: it has none for a word."""
    try:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except Exception as error:  # the library raises Exception itself
        raise InvalidInput(f"{TOKENIZER}: cannot read the text: {error!s:.200}") from None
    return found


def _pieces(path: Path) -> Iterator[tuple[str, bool]]:
    """A file's text in pieces that end with a line, and whether each is the last. Raises InvalidInput."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            piece, following = _next_piece(file), ""
            while piece:
                following = _next_piece(file)
                yield piece, not following
                piece = following
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: is not UTF-8 ({error.reason}); convert it") from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None


def _next_piece(file: IO[str]) -> str:
    piece = file.read(PIECE_CHARACTERS)
    return piece if len(piece) < PIECE_CHARACTERS or piece.endswith("\n") else piece + file.readline(PIECE_CHARACTERS)
