"""The command of a launcher's process over hosts: `python -m MODULE RUN_DIR`."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hetplanner.errors import HetplannerError, InvalidInput, one_line
from hetplanner.launchers.interface import ATTEMPT_VARIABLE

MOST_WORDS = 1900


def run_attempt(module: str, arguments: Sequence[str], act: Callable[[Path, int], int]) -> int:
    """Makes one attempt at a run; the last line says how it ended.

    Args:
        module: of the command, for its usage.
        arguments: of the command: the run's folder.
        act: what to do with the folder and the number of the attempt; it tells by itself how it ended.

    Returns:
        The exit code.
    """
    if len(arguments) != 1:
        sys.stderr.write(f"usage: python -m {module} RUN_DIR\n")
        return InvalidInput.exit_code
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    try:
        code = act(Path(arguments[0]), int(os.environ.get(ATTEMPT_VARIABLE, "0")))
    except HetplannerError as error:
        tell(str(error))
        code = error.exit_code
    sys.stdout.flush()
    return code


def tell(words: str) -> None:
    """Writes a line."""
    sys.stdout.write(one_line(words)[:MOST_WORDS] + "\n")
