"""Keeping status.json true while its disk takes nothing: it is tried again, and some space is kept for it.

Next to status.json lies a spare file whose blocks are its own already. On a full disk the status is written into that
one, which takes the other's name; the blocks of the other are the next spare, if no other process took them.
"""

import contextlib
import logging
import os
from pathlib import Path

from hetplanner.atomic_files import reserve
from hetplanner.runs.status import RunStatus, status_text, write_status

log = logging.getLogger(__name__)

SPARE_FILE = ".status.spare"
SPARE_BYTES = 16 * 1024


class StatusFile:
    """The one writer of a run's status.

    Args:
        path: of status.json.

    Attributes:
        unwritten: the status that is not in the file yet; None: the file is true.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unwritten: RunStatus | None = None
        self._spare = path.with_name(SPARE_FILE)
        self._has_failed = False

    def write(self, status: RunStatus) -> None:
        """Writes a status, or keeps it for `retry`; raises nothing."""
        self.unwritten = status
        self.retry()

    def retry(self) -> None:
        """Writes what could not be written before; raises nothing."""
        if self.unwritten is None:
            return
        if not self.path.parent.is_dir():  # the folder was removed under a run, which is still watched and ended
            self.unwritten = None
            return
        try:
            self._write(self.unwritten)
        except OSError as error:
            if not self._has_failed:
                log.error("%s cannot be written, it is tried again: %s", self.path, error)
            self._has_failed = True
            return
        self._has_failed = False
        if self.unwritten.is_over:
            self._spare.unlink(missing_ok=True)
        self.unwritten = None

    def _write(self, status: RunStatus) -> None:
        try:
            write_status(self.path, status)
        except OSError:
            with self._spare.open("r+b") as file:
                file.write(status_text(status).encode())
                file.truncate()
            self._spare.replace(self.path)
        self._reserve()

    def _reserve(self) -> None:
        """Makes the spare file, if there is none."""
        with contextlib.suppress(OSError):
            file = os.open(self._spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                reserve(file, SPARE_BYTES)
            except OSError:
                self._spare.unlink(missing_ok=True)
            finally:
                os.close(file)
