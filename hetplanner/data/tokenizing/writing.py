"""Texts, instructions and chats as token files, by the tokenizer of a Hugging Face model folder.

The files are those of `tokens.py`, format 2: tokens, where documents begin, and which tokens are answers. Everything
is read and written piece by piece, so memory does not grow with the data. A document ends with the model's end-of-text
id, if `config.json` names one; a chat ends as its template has it.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from hetplanner.data.interface import is_held_out
from hetplanner.data.text import SUFFIXES, text_files
from hetplanner.data.tokenizing.chat_template import ChatTemplate
from hetplanner.data.tokenizing.records import Columns, Row, are_records, read_rows
from hetplanner.data.tokenizing.tokenizer import (
    ids_of,
    ids_of_all,
    ids_of_marked,
    load_tokenizer,
    num_words,
    writes_special_tokens,
)
from hetplanner.data.tokens import ANSWERS, DOCUMENTS, TRAIN, VALIDATION
from hetplanner.errors import InvalidInput

PIECE_CHARACTERS = 2**20
HELD_OUT_PIECES = 10
"""Where no file is held out, every tenth piece of the text, or row of a table, is for validation."""
ROWS_AT_ONCE = 64

Encoded = tuple[Sequence[int], np.ndarray | None]
"""Ids of a document or of a piece of one, and which are to be learnt (uint8); None for all."""


@dataclass
class Written:
    """What was written: tokens by file name, the tokenizer's words, and texts so far.

    Attributes:
        answers: tokens to be learnt; None where all are.
    """

    vocab: int
    texts: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    answers: int | None = None


def write_tokens(
    text: Path,
    model: Path,
    out: Path,
    advance: Callable[[Written], None] = lambda _: None,
    columns: Columns | None = None,
) -> Written:
    """Writes a folder of token files; whole, or nothing.

    Args:
        text: a text file, or a folder of them, of which about a tenth (by their names) is for validation. Or a table:
            JSON lines, Parquet, a folder of these or a saved data set, of which every tenth row is for validation.
        model: folder of the tokenizer, and of the chat template for chats.
        out: new or empty folder.
        advance: called after every piece of text.
        columns: what a row of a table holds; None finds `messages` or `text`.

    Raises:
        InvalidInput: no text, a file that is not UTF-8, no tokenizer, no such column, a chat template that fails, or a
            folder that holds something.
        OSError: the folder cannot be written.
    """
    tokenizer, end = load_tokenizer(model)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(f"{out}: holds something; give a new or an empty folder")
    wanted = columns or Columns()
    draft = out.with_name(f".{out.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        written = Written(num_words(tokenizer))
        if are_records(text, wanted):
            _write_rows(text, model, wanted, tokenizer, end, draft, written, advance)
        else:
            _write_texts(text, tokenizer, end, draft, written, advance)
        if not written.tokens.get(TRAIN):
            raise InvalidInput(f"{text}: holds no text ({', '.join(sorted(SUFFIXES))}); add some")
        if out.exists():
            out.rmdir()
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return written


class _Files:
    """The token files of both splits, open; a context. Empty ones do not stay: the runtime cuts a split itself."""

    def __init__(self, folder: Path, written: Written, *, has_answers: bool) -> None:
        self._written, self._dtype = written, np.dtype("<u2" if written.vocab <= 2**16 else "<u4")
        self._paths = [folder / TRAIN, folder / VALIDATION[0]]
        self._endings = ("", DOCUMENTS, ANSWERS) if has_answers else ("", DOCUMENTS)
        self._stack = ExitStack()
        self._files = [{ending: self._open(path, ending) for ending in self._endings} for path in self._paths]
        self._lengths, self._ends = [0, 0], [0, 0]
        for files in self._files:
            files[DOCUMENTS].write(np.array([0], dtype="<i8").tobytes())

    def _open(self, path: Path, ending: str) -> IO[bytes]:
        return self._stack.enter_context((path.with_suffix(ending) if ending else path).open("wb"))

    def add(self, which: int, found: Encoded, *, is_last: bool = True) -> None:
        """Tokens of split `which`; with `is_last` the document ends there."""
        (ids, answers), files = found, self._files[which]
        files[""].write(np.array(ids, dtype=self._dtype).tobytes())
        if answers is not None:
            files[ANSWERS].write(answers.astype(np.uint8).tobytes())
            self._written.answers = (self._written.answers or 0) + int(np.count_nonzero(answers))
        self._lengths[which] += len(ids)
        if is_last:
            self.end_document(which)
        name = self._paths[which].name
        if ids:
            self._written.tokens[name] = self._written.tokens.get(name, 0) + len(ids)

    def end_document(self, which: int) -> None:
        """The tokens so far are whole documents."""
        if self._lengths[which] > self._ends[which]:
            self._ends[which] = self._lengths[which]
            self._files[which][DOCUMENTS].write(np.array([self._ends[which]], dtype="<i8").tobytes())

    def close(self) -> None:
        """Ends the files and writes what says how to read them."""
        self._stack.close()
        info = {
            "format": "hetplanner/tokens@2", "dtype": {2: "uint16", 4: "uint32"}[self._dtype.itemsize],
            "vocab": self._written.vocab, "documents": True, "answers": ANSWERS in self._endings,
        }  # fmt: skip
        for path, length in zip(self._paths, self._lengths, strict=True):
            if length:
                path.with_suffix(".json").write_text(json.dumps(info) + "\n", encoding="utf-8")
                continue
            for ending in self._endings:
                (path.with_suffix(ending) if ending else path).unlink()


# -- texts ------------------------------------------------------------------------------------------------------------


def _write_texts(
    text: Path, tokenizer: Any, end: int | None, folder: Path, written: Written, advance: Callable[[Written], None]
) -> None:
    paths = [Path(path) for path in text_files(text)]
    root = text if text.is_dir() else text.parent
    held_out = {path for path in paths if is_held_out(path.relative_to(root).as_posix())}
    by_file = 0 < len(held_out) < len(paths)
    files, number = _Files(folder, written, has_answers=False), 0
    for path in paths:
        for piece, is_last in _pieces(path):
            number += 1
            which = int(path in held_out if by_file else number % HELD_OUT_PIECES == 0)
            files.end_document(1 - which)  # a held-out piece parts what is around it
            ids = ids_of(tokenizer, piece) + ([end] if is_last and end is not None else [])
            files.add(which, (ids, None), is_last=is_last)
            written.texts += is_last
            advance(written)
    files.close()


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


# -- tables -----------------------------------------------------------------------------------------------------------


def _write_rows(
    path: Path, model: Path, wanted: Columns, tokenizer: Any, end: int | None, folder: Path, written: Written,
    advance: Callable[[Written], None],
) -> None:  # fmt: skip
    (columns, rows), special = read_rows(path, wanted), writes_special_tokens(model)
    with ExitStack() as stack:
        chats = stack.enter_context(ChatTemplate(model)) if columns.messages is not None else None
        files = _Files(folder, written, has_answers=columns.text is None)
        for some in _in_groups(rows, columns):
            for found in _encoded(some, columns, chats, tokenizer, end, special):
                written.texts += 1
                files.add(int(written.texts % HELD_OUT_PIECES == 0), found)
            advance(written)
        files.close()
    if columns.text is None and not written.answers:
        raise InvalidInput(f"{path}: holds no answer, so there is nothing to learn")


def _in_groups(rows: Iterator[Row], columns: Columns) -> Iterator[list[Row]]:
    """Rows that hold something, a few at once: at most as long as a piece of text, but for the last one."""
    group: list[Row] = []
    length = 0
    for row in rows:
        size = sum(len(str(row.values.get(name) or "")) for name in columns.names)
        if not size:
            continue
        group.append(row)
        length += size
        if len(group) == ROWS_AT_ONCE or length >= PIECE_CHARACTERS:
            yield group
            group, length = [], 0
    if group:
        yield group


def _encoded(
    rows: Sequence[Row], columns: Columns, chats: ChatTemplate | None, tokenizer: Any, end: int | None, special: bool
) -> list[Encoded]:
    """The documents of these rows; pairs with the `special` tokens around a text, if they are wanted."""
    ending = [] if end is None else [end]
    if columns.text is not None:
        texts = ids_of_all(tokenizer, [row.text(columns.text) for row in rows])
        return [(ids + ending, None) for ids in texts]
    if columns.messages is not None:
        assert chats is not None
        marked = chats.render([(row.place, row.messages(columns.messages)) for row in rows])
        return list(ids_of_marked(tokenizer, marked))
    assert columns.prompt is not None
    assert columns.answer is not None
    prompts, answers = (
        ids_of_all(tokenizer, [row.text(name) for row in rows], special=special)
        for name in (columns.prompt, columns.answer)
    )
    answers = [ids if special and ids[-1:] == ending else ids + ending for ids in answers]
    return [
        (prompt + answer, np.repeat(np.array([0, 1], dtype=np.uint8), (len(prompt), len(answer))))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
