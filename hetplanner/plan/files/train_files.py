"""`run.json`: how a run is trained, and which run it goes on from."""

import json
from pathlib import Path
from typing import Any

from hetplanner.atomic_files import write_whole
from hetplanner.plan.train import TrainConfig
from hetplanner.reading import DAMAGED, reader
from hetplanner.schema import check_format, checked, parse_json, read_text

CONFIG_FILE = "run.json"
CONFIG_VERSION = 1
MAX_CONFIG_BYTES = 2**20


def config_to_data(config: TrainConfig) -> dict[str, Any]:
    """The file's content."""
    return {"format": f"hetplanner/run@{CONFIG_VERSION}"} | config.model_dump(mode="json")


def save_config(config: TrainConfig, path: Path) -> None:
    """Writes the file."""
    write_whole(path, json.dumps(config_to_data(config), indent=1) + "\n", mode=0o600)


@reader("run configuration", at="path")
def load_config(path: Path) -> TrainConfig:
    """The settings in the file. Raises InvalidInput."""
    place = f"{path.parent.name}/{path.name}"
    return checked(TrainConfig, _fields(path, place), place)


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
            parent = _fields(run_dir / CONFIG_FILE, CONFIG_FILE).get("resume")
        except DAMAGED:  # no such run, or a path that no file system has
            break
        resume = parent if isinstance(parent, str) and "\0" not in parent else None
    return chain


def _fields(path: Path, place: str) -> dict[str, Any]:
    return check_format(parse_json(read_text(path, MAX_CONFIG_BYTES), place), "run", CONFIG_VERSION, place)
