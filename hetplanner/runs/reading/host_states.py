"""What the head of a run over hosts wrote of them: `hosts.json` in the run's folder."""

from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.reading import DAMAGED
from hetplanner.schema import parse_json, read_text

STATES_FILE = "hosts.json"
"""As `hosts.head` names it."""
MAX_STATES_BYTES = 2**20
MAX_WARNINGS, MAX_CHARACTERS = 10, 2000


def read_host_warnings(run_dir: Path) -> tuple[str, ...]:
    """Sentences about hosts that are out of reach or hold the run up; none where there is no such file."""
    try:
        data = parse_json(read_text(run_dir / STATES_FILE, MAX_STATES_BYTES), STATES_FILE)
        return tuple(str(text)[:MAX_CHARACTERS] for text in data["warnings"][:MAX_WARNINGS])
    except (InvalidInput, *DAMAGED):
        return ()
