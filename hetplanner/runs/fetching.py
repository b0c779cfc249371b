"""A run's copy at an address becomes a run of this machine."""

from pathlib import Path

from hetplanner.errors import InvalidInput, RunError
from hetplanner.runs.directory import RUN_ID
from hetplanner.runs.home import runs_directory
from hetplanner.storage.address import Storage, check_address
from hetplanner.storage.fetching import fetch_run


def fetch_copy(address: str, out: Path | None = None, step: int | None = None) -> tuple[str, Path, int]:
    """Fetches plan, settings and a checkpoint.

    Args:
        address: of one run's copy; its last part is the run's id.
        out: a new folder; None makes one among the runs.
        step: of the checkpoint; None takes the newest whole one.

    Returns:
        The run's id, its folder, and the checkpoint's step.

    Raises:
        InvalidInput: see `fetch_run`; or the address does not end in a run's id.
        RunError: the disk does not take it.
    """
    address = check_address(address, "address")
    run_id = address.rpartition("/")[2]
    if not RUN_ID.match(run_id):
        raise InvalidInput(f"address: must end in a run's id, such as s3://bucket/folder/RUN, got {run_id!r:.80}")
    folder = runs_directory() / run_id if out is None else out.expanduser().absolute()
    try:
        return run_id, folder, fetch_run(Storage(address), folder, step)
    except OSError as error:
        raise RunError(f"{folder}: cannot be written: {error.strerror or error}") from None
