"""Files under a second name, so that they can be read to their end while a run removes them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def held_files(folder: Path, names: list[str] | None = None) -> Iterator[Path]:
    """Hard links to files of a folder.

    Args:
        folder: of a run's checkpoints, or of one of them.
        names: of its files; None takes all.

    Yields:
        A folder with the links; where the file system has none, or a file is missing, `folder` itself.
    """
    with TemporaryDirectory(prefix=".copying-", dir=folder.parent) as held:
        try:
            for name in os.listdir(folder) if names is None else names:
                os.link(folder / name, Path(held) / name)
            place = Path(held)
        except OSError:
            place = folder
        yield place
