"""What a person says about a run: a name, notes and tags, in a file beside its status; without the file, nothing."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from hetplanner.atomic_files import write_whole
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, checked_json, read_text

ANNOTATIONS_VERSION = 1
MAX_ANNOTATIONS_BYTES = 2**16
ANNOTATIONS_FILE = "annotations.json"
MAX_TAGS = 20


def _printable(value: str) -> str:
    if value and (not value.isprintable() or value.strip() != value):
        raise ValueError(f"must hold printable characters only, without blanks around it, got {value!r:.60}")
    return value


def _once(tags: tuple[str, ...]) -> tuple[str, ...]:
    if any("," in tag for tag in tags):
        raise ValueError("must hold no comma: commas part one tag from the next")
    return tuple(dict.fromkeys(tags))


class Annotations(Noun):
    """A run's name, notes and tags; all are plain text. The run's id stays what finds it."""

    name: Annotated[str, Field(max_length=120), AfterValidator(_printable)] = ""
    notes: Annotated[str, Field(max_length=4000)] = ""
    tags: Annotated[
        tuple[Annotated[Name, Field(max_length=40)], ...], Field(max_length=MAX_TAGS), AfterValidator(_once)
    ] = ()


def write_annotations(folder: Path, annotations: Annotations) -> None:
    """Replaces those of the run in `folder`. Raises InvalidInput where the disk does not take them."""
    data = {"format": f"hetplanner/annotations@{ANNOTATIONS_VERSION}"} | annotations.model_dump(mode="json")
    try:
        write_whole(folder / ANNOTATIONS_FILE, json.dumps(data, indent=1) + "\n", mode=0o600)
    except OSError as error:
        raise InvalidInput(f"{folder.name}: name, notes and tags cannot be saved: {error.strerror}") from None


@reader("run annotations", at="folder")
def read_annotations(folder: Path) -> Annotations:
    """Those of the run in `folder`; empty where there are none. Raises InvalidInput (damaged, of a newer version)."""
    path, place = folder / ANNOTATIONS_FILE, f"{folder.name}/{ANNOTATIONS_FILE}"
    if not path.exists():
        return Annotations()
    text = read_text(path, MAX_ANNOTATIONS_BYTES)
    return checked_json(Annotations, text, "annotations", ANNOTATIONS_VERSION, place)


def known_annotations(folder: Path) -> Annotations:
    """The same; a damaged file hides no run."""
    try:
        return read_annotations(folder)
    except InvalidInput:
        return Annotations()


def tags_of(text: str) -> tuple[str, ...]:
    """Tags from 'one, two'."""
    return tuple(tag for part in text.split(",") if (tag := part.strip()))


def matches(said: Annotations, run_id: str, state: str, text: str = "", tag: str = "", wanted: str = "") -> bool:
    """Whether a run is among those looked for.

    Args:
        said: of the run.
        run_id, state: of the run.
        text: words, all of which its id, name, notes or tags hold; case does not count.
        tag: one of its tags; '': any.
        wanted: its state; '': any.
    """
    held = " ".join((run_id, said.name, said.notes, *said.tags)).casefold()
    words = all(word in held for word in text.casefold().split())
    return words and (not tag or tag in said.tags) and (not wanted or wanted == state)
