"""Runs that go on from each other: a run's `run.json` names the one before it."""

from pathlib import Path

from hetplanner.reading import DAMAGED
from hetplanner.schema import check_format, parse_json, read_text

CONFIG_FILE = "run.json"
CONFIG_VERSION = 1
MAX_CONFIG_BYTES = 2**20


def resume_chain(resume: str | None) -> list[Path]:
    """The run directories to look for a checkpoint in: the one named, then that which it went on from, and so on.

    Ends where a run began by itself, cannot be read, or has come before.
    """
    chain: list[Path] = []
    while resume is not None:
        try:
            run_dir = Path(resume)
            if run_dir.resolve() in [one.resolve() for one in chain]:
                break
            chain.append(run_dir)
            data = parse_json(read_text(run_dir / CONFIG_FILE, MAX_CONFIG_BYTES), CONFIG_FILE)
            parent = check_format(data, "run", CONFIG_VERSION, CONFIG_FILE).get("resume")
        except DAMAGED:  # no such run, or a path that no file system has
            break
        resume = parent if isinstance(parent, str) and "\0" not in parent else None
    return chain
