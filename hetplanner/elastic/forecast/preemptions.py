"""Preemption traces as files: `hetplanner/preemptions@1`. When which peer was there, and how fast it is."""

import json
import os
from collections import defaultdict
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, Seconds, Text, checked_json, read_text, write_text

PREEMPTIONS_VERSION = 1
MAX_TRACE_BYTES = 8 * 2**20
"""Largest trace file read; 50,000 lives are about 5 MB."""
MAX_LIVES = 50_000
PUBLISHED_TRACES = ("bamboo_g4dn", "bamboo_g4dn_us_east_1c", "bamboo_g4dn_us_east_1d", "bamboo_p2")


class Life(Noun):
    """One stay of a peer: from its start to its preemption or, without one, to the trace's end.

    Attributes:
        speed: work units per second; 1 is a swarm's usual peer.
    """

    peer: Name
    start: Seconds
    end: Seconds
    speed: Annotated[float, Field(strict=True, gt=0, le=1e6)] = 1.0

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> Self:
        if self.end <= self.start:
            raise ValueError(f"end: must be after start {self.start:g} s, got {self.end:g} s")
        return self


class PreemptionTrace(Noun):
    """When each peer was present.

    Attributes:
        synthetic: drawn, not observed.
        lives: every stay of every peer; a peer's own do not overlap.
    """

    name: Name
    source: Text = ""
    license: Text = ""
    note: Text = ""
    synthetic: bool = False
    duration: Annotated[Seconds, Field(gt=0)]
    lives: Annotated[tuple[Life, ...], Field(min_length=1, max_length=MAX_LIVES)]

    @model_validator(mode="after")
    def _lives_fit(self) -> Self:
        of_peer: dict[str, list[Life]] = defaultdict(list)
        for i, life in enumerate(self.lives):
            if life.end > self.duration:
                raise ValueError(
                    f"lives[{i}].end: must be at most the duration {self.duration:g} s, got {life.end:g} s"
                )
            of_peer[life.peer].append(life)
        for peer, lives in of_peer.items():
            for one, two in pairwise(sorted(lives, key=lambda life: life.start)):
                if two.start < one.end:
                    raise ValueError(
                        f"lives: {peer!r:.60} is there twice at {two.start:g} s; give every process a name of its own"
                    )
        return self


@reader("preemption trace", at="place")
def preemptions_from_json(text: str | bytes, place: str = "preemptions") -> PreemptionTrace:
    """A trace from the text of such a file. Raises InvalidInput naming the field inside `place`."""
    return checked_json(PreemptionTrace, text, "preemptions", PREEMPTIONS_VERSION, place, from_file=True)


@reader("preemption trace", at="path")
def load_preemptions(path: str | os.PathLike[str]) -> PreemptionTrace:
    """A trace from a file, or one of `PUBLISHED_TRACES` by its name. Raises InvalidInput."""
    if str(path) in PUBLISHED_TRACES:
        file = files("hetplanner.elastic") / "traces" / f"{path}.json"
        return preemptions_from_json(file.read_bytes(), str(path))
    return preemptions_from_json(read_text(path, MAX_TRACE_BYTES), Path(path).name)


def preemptions_to_data(trace: PreemptionTrace) -> dict[str, Any]:
    """The trace file's content as plain data."""
    return {"format": f"hetplanner/preemptions@{PREEMPTIONS_VERSION}"} | trace.model_dump(mode="json")


def save_preemptions(trace: PreemptionTrace, path: str | os.PathLike[str]) -> None:
    """Writes a trace file, a line for every life. Raises InvalidInput if it is too large or cannot be written."""
    data = preemptions_to_data(trace)
    lives = ",\n".join("  " + json.dumps(life) for life in data.pop("lives"))
    head = json.dumps(data, indent=1, ensure_ascii=False).removesuffix("\n}")
    text = f'{head},\n "lives": [\n{lives}\n ]\n}}\n'
    if len(text.encode()) > MAX_TRACE_BYTES:
        raise InvalidInput(f"{path}: a trace file must be at most {MAX_TRACE_BYTES} bytes; give fewer lives")
    write_text(path, text)
