"""Which kinds of data there are, and which of them a path is. A new kind is one line in `KINDS`."""

from pathlib import Path

from hetplanner.data.digits import DIGITS
from hetplanner.data.documents import PackedDocuments
from hetplanner.data.images import IMAGES
from hetplanner.data.interface import DataKind, Source
from hetplanner.data.need import Need, TokenNeed, need_of
from hetplanner.data.pairs import PairedDocuments
from hetplanner.data.saved_datasets import SAVED_DATASETS
from hetplanner.data.text import TEXT, standard_library
from hetplanner.data.tokens import TOKENS
from hetplanner.data.windows import Windows
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.workload.task import HiddenTokens, Pairs
from hetplanner.workload.workload import Workload

BYTES = 256
KINDS: tuple[DataKind, ...] = (SAVED_DATASETS, TOKENS, IMAGES, DIGITS, TEXT)
"""The first that claims a path and gives what the workload reads takes it."""


@reader("data set", at="data")
def open_data(data: str | None, workload: Workload) -> Source:
    """The data of a run, opened: indexed or mapped, not read.

    Args:
        data: a path, or the word of a kind; None takes the Python standard library's sources for a model of tokens
            and scikit-learn's digits for one of images.
        workload: what reads it.

    Raises:
        InvalidInput: no such data, none that fits the workload, or too little of it.
    """
    need = need_of(workload)
    if data is None:
        source = TEXT.open(standard_library(), need) if isinstance(need, TokenNeed) else DIGITS.open(Path(), need)
    else:
        source = _kind_of(data, need).open(Path(data).expanduser(), need)
    if isinstance(need, TokenNeed) and isinstance(need.task, Pairs) and not isinstance(source, PairedDocuments):
        raise InvalidInput(
            f"data: {source.name} holds no pairs, which workload {need.workload} learns; write some: hetplanner"
            " workload tokenize TABLE MODEL --prompt-column SOURCE --answer-column TARGET -o FOLDER"
        )
    return source


def open_stream(data: str | None, workload: Workload) -> Source:
    """As `open_data`, for a swarm: documents are one long text. Raises InvalidInput: also where answers are marked."""
    source = open_data(data, workload)
    if isinstance(source, PackedDocuments):
        return source.unpacked("a swarm learns every token; train a static plan")
    if isinstance(source, PairedDocuments):
        raise InvalidInput(f"data: {source.name} holds pairs, and a swarm learns every token; train a static plan")
    return source


@reader("data set", at="data")
def check_data(data: str | None, workload: Workload) -> None:
    """Opens the data and reads a bounded share of it, before any process is started. Raises InvalidInput."""
    source = open_data(data, workload)
    task = workload.program.task if workload.program is not None else None
    if isinstance(task, HiddenTokens) and task.mask_token < BYTES and isinstance(source, Windows) and source.is_bytes:
        raise InvalidInput(
            f"data: {source.name} is text, read as bytes, and the mask token {task.mask_token} of workload"
            f" {workload.name} is one of them; write it as ids first: hetplanner workload tokenize TEXT MODEL -o FOLDER"
        )
    source.check()


def check_all_data(data: str | None, eval_data: str | None, workload: Workload) -> None:
    """Checks the data of a run, and what it is evaluated on. Raises InvalidInput."""
    check_data(data, workload)
    if eval_data is None:
        return
    try:
        check_data(eval_data, workload)
    except InvalidInput as error:
        raise InvalidInput(f"eval_data: {str(error).removeprefix('data: ')}") from None


def is_bytes(data: str | None, workload: Workload) -> bool:
    """Whether the data is text that is read as bytes. Raises InvalidInput as `open_data` does."""
    source = open_data(data, workload)
    return isinstance(source, Windows) and source.is_bytes


def absolute_data(data: str | None) -> str | None:
    """A path made absolute, for a process with another working directory; words stay."""
    if data is None or any(data == kind.word for kind in KINDS):
        return data
    return str(Path(data).expanduser().absolute())


def _kind_of(data: str, need: Need) -> DataKind:
    named = [kind for kind in KINDS if kind.word == data]
    path = Path(data).expanduser()
    claiming = named or [kind for kind in KINDS if _exists(path) and kind.claims(path)]
    fitting = [kind for kind in claiming if kind.fits(need)]
    if fitting:
        return fitting[0]
    wanted = "; ".join(kind.looks_like for kind in KINDS if kind.fits(need))
    if claiming and (named or claiming[0] is not TEXT):
        raise InvalidInput(
            f"data: {data} is {claiming[0].looks_like}: {claiming[0].gives}, which workload {need.workload} does not"
            f" read; give {wanted}"
        )
    what = "is neither a file nor a folder" if not _exists(path) else "holds nothing that it reads"
    raise InvalidInput(f"data: {data} {what}; workload {need.workload} takes {wanted}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # not allowed, or a null byte
        return False
