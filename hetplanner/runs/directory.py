"""Run directories: where they are, what they are called, what is in them.

A run lives in `HOME/runs/ID`, or in a folder of the user's choice to which `HOME/runs/ID` is a link. An id is
the UTC time of its creation, the model's name and four random digits: readable, unique, sorted by age.
"""

import contextlib
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.launchers.launch_file import LAUNCH_FILE, Launch, save_launch
from hetplanner.plan.files.plan_files import AnyPlan, save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.home import refuse_others, runs_directory

RUN_ID = re.compile(r"^[0-9a-z][0-9a-z.-]{0,79}$")
"""Ids become file names and parts of URLs: nothing that a path or a URL reads differently."""


@dataclass(frozen=True)
class RunDirectory:
    """Names of the files of one run; the contract between runtime, agent and readers."""

    path: Path

    @property
    def plan_file(self) -> Path:
        """What is run."""
        return self.path / "plan.json"

    @property
    def config_file(self) -> Path:
        """How it is trained (TrainConfig)."""
        return self.path / "run.json"

    @property
    def status_file(self) -> Path:
        """Where it stands; written by the agent alone."""
        return self.path / "status.json"

    @property
    def prediction_file(self) -> Path:
        """What the ranks' own profile predicts; written once, before the first step."""
        return self.path / "prediction.json"

    @property
    def stop_file(self) -> Path:
        """Its existence asks the ranks to stop after the step they are in."""
        return self.path / "stop"

    @property
    def signalled_file(self) -> Path:
        """A rank leaves it for the others when it was told to end by a signal."""
        return self.path / "stop.signalled"

    @property
    def launcher_log(self) -> Path:
        """The launcher's own output."""
        return self.path / "launcher.txt"

    @property
    def model_file(self) -> Path:
        """The trained model."""
        return self.path / "model.safetensors"

    def telemetry_file(self, rank: int) -> Path:
        """Phases, spans and steps of a rank, one JSON object a line."""
        return self.path / f"rank-{rank}.jsonl"

    def log_file(self, rank: int) -> Path:
        """Standard output and error of a rank."""
        return self.path / f"log-{rank}.txt"


def new_run_id(model: str, now_s: float | None = None) -> str:
    """'20261120-093412-tiny-gpt-3f9a': UTC, the model's name, four random hexadecimal digits."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))
    name = re.sub(r"[^0-9a-z]+", "-", model.lower()).strip("-")[:40] or "run"
    return f"{stamp}-{name}-{secrets.token_hex(2)}"


def create_run_directory(
    plan: AnyPlan,
    config: TrainConfig,
    out: Path | None = None,
    home: Path | None = None,
    *,
    parent: Path | None = None,
    launch: Launch | None = None,
) -> tuple[str, RunDirectory]:
    """Makes the directory of a new run with its plan and configuration.

    Args:
        plan: saved as `plan.json`.
        config: saved as `run.json`.
        out: a folder for this run, made if missing, which must be empty; it is registered under HOME.
        home: None takes `$HETPLANNER_HOME` or the platform's data directory.
        parent: an existing folder for a new folder of the run, which is registered under HOME.
        launch: how it is launched, saved as `launch.json` unless that is on this machine.

    Raises:
        InvalidInput: when `out` or `parent` cannot be used.
    """
    runs = runs_directory(home)
    run_id = new_run_id(plan.problem.workload.name)
    path = (parent or runs).resolve() / run_id if out is None else _empty_folder(out)
    if out is None:
        try:
            path.mkdir(mode=0o700)
            _close(path)
        except OSError as error:
            raise InvalidInput(f"{path.parent}: no run can be written there: {error.strerror}") from None
    if path != runs.resolve() / run_id:
        (runs / run_id).symlink_to(path, target_is_directory=True)
    directory = RunDirectory(path)
    try:
        save_plan(plan, directory.plan_file)
        save_config(config, directory.config_file)
        if launch is not None and not launch.is_local:
            save_launch(launch.replace(run=run_id), path)
    except (InvalidInput, OSError) as error:
        _take_back(directory, runs / run_id, is_own=out is None)
        text = str(error) if isinstance(error, InvalidInput) else f"{path}: cannot be written: {error.strerror}"
        raise InvalidInput(f"{text}; no run is begun") from None
    return run_id, directory


def _take_back(directory: RunDirectory, registered: Path, *, is_own: bool) -> None:
    """Leaves nothing of a run whose folder takes no files."""
    with contextlib.suppress(OSError):
        directory.plan_file.unlink(missing_ok=True)
        directory.config_file.unlink(missing_ok=True)
        (directory.path / LAUNCH_FILE).unlink(missing_ok=True)
        if registered.is_symlink():
            registered.unlink()
        if is_own:
            directory.path.rmdir()


def _empty_folder(out: Path) -> Path:
    path = out.expanduser()
    if not path.is_absolute():
        raise InvalidInput(f"{out}: must be an absolute path here")
    try:
        path = path.resolve()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
        if is_empty:
            _close(path)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{out}: cannot be used as run directory: {error}") from None
    if not is_empty:
        raise InvalidInput(f"{out}: must be an empty folder, it holds files; give another with -o")
    return path


def _close(path: Path) -> None:
    """Keeps other users out of a folder for a run. Raises InvalidInput (another user's), OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_uid == os.getuid():
            os.fchmod(handle, 0o700)
        refuse_others(path, os.fstat(handle))
    finally:
        os.close(handle)
    above = path.parent.stat()
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise InvalidInput(f"{path.parent}: every user may rename what lies in it; give a run another folder with -o")


def list_run_ids(home: Path | None = None) -> list[str]:
    """Ids of all registered runs whose directory still exists, oldest first."""
    mine = os.getuid()  # another user may have put a folder of theirs in the place of one
    found = (p for p in runs_directory(home).iterdir() if RUN_ID.match(p.name) and p.is_dir())
    return sorted(p.name for p in found if p.stat().st_uid == mine)


def find_run(name: str | Path, home: Path | None = None) -> tuple[str, RunDirectory]:
    """A run by id, by the beginning or end of an id, by `last`, or by the path of its directory.

    Raises:
        InvalidInput: when there is none, or several.
    """
    text = str(name)
    ids = list_run_ids(home)
    if text in ids:
        return text, _directory_of(text, home)
    path = Path(text).expanduser()
    if path.is_dir() and (path / "plan.json").is_file():
        return _id_of_directory(path.resolve(), ids, home), RunDirectory(path.resolve())
    if text == "last" and ids:
        return ids[-1], _directory_of(ids[-1], home)
    matches = [i for i in ids if text and (i.startswith(text) or i.endswith(text))]
    if len(matches) == 1:
        return matches[0], _directory_of(matches[0], home)
    if matches:
        raise InvalidInput(f"run {text!r:.80}: fits {len(matches)} runs, such as {matches[-1]}; give more of its id")
    raise InvalidInput(f"run {text!r:.80}: no such run; `hetplanner runs list` shows them")


def _directory_of(run_id: str, home: Path | None) -> RunDirectory:
    return RunDirectory((runs_directory(home) / run_id).resolve())


def _id_of_directory(path: Path, ids: list[str], home: Path | None) -> str:
    known = [i for i in ids if _directory_of(i, home).path == path]
    return known[-1] if known else path.name
