"""Where a run is launched: `launch.json` in its folder, so that an agent started later goes on the same way.

A run without the file runs on this machine.
"""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hetplanner.atomic_files import write_whole
from hetplanner.launchers.hosts_file import MAX_HOSTS, Hosts
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, Text, checked_json, read_text

LAUNCH_FILE = "launch.json"
LAUNCH_VERSION = 1
MAX_LAUNCH_BYTES = 2**20
LOCAL = "local"


class Launch(Noun):
    """How a run is launched.

    Attributes:
        launcher: its name.
        hosts: how the plan's hosts are reached.
        run: the run's id, which names its folder on every host.
        first: directory of the run whose hosts these were before some went away; None: this is the first one.
        away: names of its hosts that are away.
    """

    launcher: Annotated[str, Field(pattern="^[a-z0-9-]{1,40}$")] = LOCAL
    hosts: Hosts | None = None
    run: Name | None = None
    first: Text | None = None
    away: Annotated[tuple[Name, ...], Field(max_length=MAX_HOSTS)] = ()

    @property
    def is_local(self) -> bool:
        """Whether its processes are this machine's."""
        return self.launcher == LOCAL


def save_launch(launch: Launch, run_dir: Path) -> None:
    """Writes `launch.json`. Raises OSError."""
    data = {"format": f"hetplanner/launch@{LAUNCH_VERSION}"} | launch.model_dump(mode="json", exclude_none=True)
    write_whole(run_dir / LAUNCH_FILE, json.dumps(data, indent=1) + "\n", mode=0o600)


@reader("launch file", at="run_dir")
def load_launch(run_dir: Path) -> Launch:
    """How a run is launched; without a file, on this machine. Raises InvalidInput."""
    path = run_dir / LAUNCH_FILE
    if not path.exists():
        return Launch()
    place = f"{run_dir.name}/{LAUNCH_FILE}"
    return checked_json(Launch, read_text(path, MAX_LAUNCH_BYTES), "launch", LAUNCH_VERSION, place)
