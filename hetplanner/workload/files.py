"""Workload files: `hetplanner/workload@1`, JSON, validated, never naming code.

A captured model travels in one: its OP-DAG, and its program if it is to be trained. Any machine can plan and train it
without the model's code.
"""

import json
import os
from pathlib import Path
from typing import Any

from hetplanner.reading import reader
from hetplanner.schema import check_format, checked, one_line, parse_json, read_text, write_text
from hetplanner.workload.workload import Workload

WORKLOAD_VERSION = 1


@reader("workload file", at="place")
def workload_from_json(text: str | bytes, place: str = "workload") -> Workload:
    """A workload from the text of a workload file. Raises InvalidInput naming the field inside `place`."""
    return workload_from_data(parse_json(text, place), place)


def workload_from_data(data: object, place: str) -> Workload:
    """A workload from the content of a workload file. Raises InvalidInput naming the field inside `place`."""
    return checked(Workload, check_format(data, "workload", WORKLOAD_VERSION, place), place, from_file=True)


@reader("workload file", at="path")
def load_workload_file(path: str | os.PathLike[str]) -> Workload:
    """A workload from a file. Raises InvalidInput."""
    return workload_from_json(read_text(path), one_line(Path(path).name))


def workload_to_data(workload: Workload) -> dict[str, Any]:
    """The workload file's content as plain data; fields that hold their default are left out."""
    return {"format": f"hetplanner/workload@{WORKLOAD_VERSION}"} | workload.model_dump(
        mode="json", exclude_defaults=True
    )


def save_workload(workload: Workload, path: str | os.PathLike[str]) -> None:
    """Writes a workload file. Raises InvalidInput if the path cannot be written."""
    write_text(path, json.dumps(workload_to_data(workload), separators=(",", ":")) + "\n")
