"""Which checkpoints each host of a swarm has: from the head for the coordinator's host, when a run is started again.

    RUN/saved.json

Every peer writes to its host's own disk. No torch.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, checked_json, read_text

SAVED_FILE = "saved.json"
SAVED_VERSION = 1
FileName = Annotated[str, Field(max_length=1000)]


class _Saved(Noun):
    """The file's content."""

    hosts: Annotated[dict[Name, Annotated[tuple[FileName, ...], Field(max_length=10_000)]], Field(max_length=4096)]


def saved_text(hosts: Mapping[str, Sequence[str]]) -> str:
    """The file's content, from names of checkpoints by host."""
    fields = {name: list(files) for name, files in hosts.items()}
    return json.dumps({"format": f"hetplanner/saved@{SAVED_VERSION}", "hosts": fields})


@reader("list of checkpoints", at="run_dir")
def saved_on_hosts(run_dir: Path) -> dict[str, frozenset[str]]:
    """Names of checkpoints by host; nothing of a run that has just begun. Raises InvalidInput."""
    path = run_dir / SAVED_FILE
    if not path.exists():
        return {}
    saved = checked_json(_Saved, read_text(path), "saved", SAVED_VERSION, SAVED_FILE)
    return {host: frozenset(names) for host, names in saved.hosts.items()}
