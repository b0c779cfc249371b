"""Reading text files that another process is writing: new whole lines since the last look, at bounded cost."""

from collections.abc import Iterator
from pathlib import Path

MAX_LINE_BYTES = 2**20
"""A longer line is no telemetry of ours; it is skipped and counted."""


class LineTail:
    """A cursor in one growing file.

    Attributes:
        offset: bytes consumed so far; always just behind a newline.
        skipped_bytes: bytes passed over because the file was larger than `max_backlog_bytes`.
        long_lines: lines dropped for their length.
    """

    def __init__(self, path: Path, max_backlog_bytes: int = 256 * 2**20) -> None:
        """A cursor at the file's start; the file need not exist yet.

        Args:
            path: the file.
            max_backlog_bytes: of a file that is further ahead than this only the last part is read.
        """
        self.path = path
        self.max_backlog_bytes = max_backlog_bytes
        self.offset = 0
        self.skipped_bytes = 0
        self.long_lines = 0
        self._in_long_line = False

    def lines(self, max_bytes: int) -> Iterator[bytes]:
        """Whole new lines without their ends, from at most `max_bytes` of the file.

        A last line without its newline stays for the next call. A file that has shrunk is read from the start.
        """
        try:
            size = self.path.stat().st_size
            if size == self.offset:
                return
            with self.path.open("rb") as file:
                self._seek(size)
                file.seek(self.offset)
                chunk = file.read(max(max_bytes, 1))
                if b"\n" not in chunk:  # one line alone is longer than the share: take it whole, up to the cap
                    chunk += file.read(max(MAX_LINE_BYTES + 1 - len(chunk), 0))
        except OSError:
            return
        yield from self._whole_lines(chunk)

    @property
    def is_behind(self) -> bool:
        """Whether the file holds bytes that have not been read (a partial line included)."""
        try:
            return self.path.stat().st_size > self.offset
        except OSError:
            return False

    def _seek(self, size: int) -> None:
        if size < self.offset:
            self.offset = 0
            self._in_long_line = False
        if size - self.offset > self.max_backlog_bytes:
            target = size - self.max_backlog_bytes
            self.skipped_bytes += target - self.offset
            self.offset = target
            self._in_long_line = True  # we stand inside some line: pass over its rest
            self.long_lines -= 1

    def _whole_lines(self, chunk: bytes) -> Iterator[bytes]:
        end = chunk.rfind(b"\n")
        if end < 0:
            if len(chunk) > MAX_LINE_BYTES or (self._in_long_line and chunk):
                self.offset += len(chunk)
                self._in_long_line = True
            return
        self.offset += end + 1
        for line in chunk[:end].split(b"\n"):
            if self._in_long_line:
                self._in_long_line = False
                self.long_lines += 1
            elif len(line) > MAX_LINE_BYTES:
                self.long_lines += 1
            elif line:
                yield line


def text_from(path: Path, cursor: int, max_bytes: int = 65536) -> tuple[str, int]:
    """Text of a log from a byte cursor on, and the cursor to go on from.

    Args:
        path: the log; a missing one is empty.
        cursor: bytes already seen; -1 starts so that the end of the file is just reached.
        max_bytes: most bytes returned by one call.

    Returns:
        The text (undecodable bytes replaced; a cut character at the end waits for the next call), new cursor.
    """
    try:
        size = path.stat().st_size
        start = max(0, size - max_bytes) if cursor < 0 else min(cursor, size)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(max_bytes)
    except OSError:
        return "", max(cursor, 0)
    whole = _without_cut_character(data)
    return whole.decode("utf-8", errors="replace"), start + len(whole)


def _without_cut_character(data: bytes) -> bytes:
    # A UTF-8 character has at most 4 bytes: look at the last 3 for a lead byte that wants more than follow.
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if wanted > back and len(data) > back else data
        if byte < 0x80:
            break
    return data


def last_lines(path: Path, count: int, max_bytes: int = 65536) -> list[str]:
    """The last `count` lines that are not blank, each cut to 400 characters."""
    text, _ = text_from(path, -1, max_bytes)
    lines = [line.rstrip()[:400] for line in text.splitlines()]
    return [line for line in lines if line][-count:]
