"""Drafts on disk: the newest state of each outlives the server; its history does not."""

import atexit
import json
import logging
import re
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from hetplanner.cluster.formats.cluster_files import cluster_from_data, cluster_to_data
from hetplanner.errors import HetplannerError
from hetplanner.reading import reader
from hetplanner.runs.home import drafts_directory
from hetplanner.schema import Noun, checked_json, read_text, write_text
from hetplanner.ui.cluster.models.drafts import Draft, DraftStore, Step

_log = logging.getLogger(__name__)

VERSION = 1
WRITE_AFTER_S = 1.0
"""So long after an edit, with those that came meanwhile, a draft is written."""
MOST_FILES = 64
MOST_WEIGHT = 20_000
"""Devices and links of a state that is written: a larger one would stop the server's pages for half a second."""
DRAFT_ID = re.compile(r"[\w-]{8,32}", re.ASCII)


class DraftEntry(Noun):
    """A draft file without its `format`. No cluster: nothing was drawn."""

    words: str = ""
    excluded: tuple[str, ...] = ()
    cluster: Any = None


@reader("draft", at="path")
def read_draft(path: Path) -> Step:
    """The state in a draft's file. Raises InvalidInput."""
    entry = checked_json(DraftEntry, read_text(path), "draft", VERSION, path.name, from_file=True)
    cluster = None if entry.cluster is None else cluster_from_data(entry.cluster, path.name)
    known = set(cluster.device_ids) if cluster is not None else set()
    return Step(cluster, tuple(d for d in entry.excluded if d in known), entry.words)


class DraftFiles:
    """`HOME/drafts/ID.json`, written by a thread of its own, and when the server ends; the oldest go first.

    Args:
        home: where `drafts/` is; None takes `$HETPLANNER_HOME` or the platform's data directory.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._due: dict[str, Draft] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._writing = threading.Lock()
        atexit.register(self.flush)

    def note(self, draft: Draft) -> None:
        """A draft has changed."""
        with self._lock:
            self._due[draft.id] = draft
            if self._timer is None:
                self._timer = threading.Timer(WRITE_AFTER_S, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Writes what has changed; returns once it, and what another thread had begun to write, is on the disk."""
        with self._writing:
            with self._lock:
                due, self._due, self._timer = list(self._due.values()), {}, None
            for draft in due:
                self._guarded(partial(self._write, draft), draft.id)
            if due:
                self._guarded(self._prune, "old ones")

    def load(self, draft_id: str) -> Draft | None:
        """A draft as it was last written; None if there is none that can be read."""
        if not DRAFT_ID.fullmatch(draft_id):
            return None
        path = drafts_directory(self._home, make=False) / f"{draft_id}.json"
        try:
            if not path.is_file():
                return None
            return Draft(read_draft(path), draft_id)
        except (HetplannerError, OSError) as error:
            _log.warning("draft not read: %s", error)
            return None

    def _write(self, draft: Draft) -> None:
        with draft.lock:
            step = draft.step
        path = drafts_directory(self._home) / f"{draft.id}.json"
        if step.weight > MOST_WEIGHT:
            path.unlink(missing_ok=True)  # rather none than an old one
            return
        cluster = None if step.cluster is None else cluster_to_data(step.cluster)
        if cluster is not None:
            del cluster["format"]
        data = {"format": f"hetplanner/draft@{VERSION}", "words": step.words, "excluded": step.excluded}
        write_text(path, json.dumps(data | {"cluster": cluster}) + "\n")

    def _prune(self) -> None:
        files = sorted(drafts_directory(self._home).glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)

    @staticmethod
    def _guarded(act: Callable[[], None], what: str) -> None:
        try:
            act()
        except (HetplannerError, OSError) as error:  # a full disk: the draft lives on in memory
            _log.warning("draft %s not written: %s", what, error)


@cache
def process_drafts(home: Path | None) -> DraftStore:
    """The store that all sessions of this process share."""
    return DraftStore(files=DraftFiles(home))
