"""Damages files and reads them: what the benchmark counts and the test asserts, for all readers of `readers`."""

import random
import shutil
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import hetplanner
from hetplanner.errors import HetplannerError
from hetplanner.reading import DAMAGED_WORDS, noting
from tests.support.files.damage import damaged
from tests.support.files.readers import READERS, Reader

PACKAGE = str(Path(hetplanner.__file__).parent)
MAX_CPU_S = 20.0
"""A case that computes longer is given up, and counts as such."""


class TooSlowError(BaseException):
    """Not an `Exception`: no reader may catch it."""


@dataclass(frozen=True)
class Failure:
    """A case that did not end as it should: its number, the file and its content, and what came."""

    case: int
    file: str
    content: bytes
    text: str


@dataclass
class Outcome:
    """Of the cases of one reader.

    Attributes:
        unforeseen: refused by the general law of `hetplanner.reading` and by no check of the reader's own.
        others: exceptions that are none of ours, and messages of more than a line.
        slowest_s: CPU time of the slowest case; `slowest` is its number.
    """

    accepted: int = 0
    refused: int = 0
    unforeseen: list[Failure] = field(default_factory=list)
    others: list[Failure] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: int = -1

    @property
    def cases(self) -> int:
        """How many."""
        return self.accepted + self.refused + len(self.others)


def fuzz(reader: Reader, cases: range, seed: int) -> Outcome:
    """Damages one file of a reader's in every case, and reads them all."""
    files, found = reader.files(), Outcome()
    others = [content for other in READERS for content in list(other.files().values())[:3]]
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write_all(folder, files)
        for case in cases:
            rng = random.Random(f"{seed} {reader.name} {case}")
            file = rng.choice(sorted(files))
            content = damaged(rng, file, files[file], others)
            (folder / file).write_bytes(content)
            _try(reader, folder, Failure(case, file, content, ""), found)
            if {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} != set(files):
                shutil.rmtree(folder)  # a reader may leave nothing behind; if it does, the next case begins anew
                _write_all(folder, files)
            (folder / file).write_bytes(files[file])
    return found


def _write_all(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o600)


def _try(reader: Reader, folder: Path, case: Failure, found: Outcome) -> None:
    began_s = time.process_time()
    try:
        with _limited(), noting(lambda text: None):
            reader.read(folder)
        found.accepted += 1
    except HetplannerError as error:
        found.refused += 1
        said = str(error)
        if not said.isprintable() or len(said) > 1500:
            found.refused -= 1
            found.others.append(Failure(case.case, case.file, case.content, f"no line for a person: {said[:200]!r}"))
        elif DAMAGED_WORDS in said:
            found.unforeseen.append(Failure(case.case, case.file, case.content, _trace_of(error.__cause__ or error)))
    except (Exception, TooSlowError) as error:
        found.others.append(Failure(case.case, case.file, case.content, _trace_of(error)))
    spent_s = time.process_time() - began_s
    if spent_s > found.slowest_s:
        found.slowest_s, found.slowest = spent_s, case.case


def _trace_of(error: BaseException) -> str:
    """What came, and the lines of the product that it came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
    frames = frames or traceback.extract_tb(error.__traceback__)[-2:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-4:]))
    return f"{type(error).__name__}: {str(error)[:160]} at {places}"


@contextmanager
def _limited() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TooSlowError(f"more than {MAX_CPU_S:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
