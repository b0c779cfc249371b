"""Weights & Biases: online or offline, as its own environment variables say. The library alone reads its API key."""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from hetplanner.runs.sinks.interface import Point, RunFacts

PROJECT = "hetplanner"


class WandbSink:
    """A run of W&B with our run's id, resumed when more is sent. Its service drops steps that it has already."""

    modules: ClassVar[tuple[str, ...]] = ("wandb",)

    def __init__(self, facts: RunFacts, folder: Path) -> None:
        """Files of W&B go to `folder/wandb`, unless WANDB_DIR names another one."""
        self._facts = facts
        self._folder = Path(os.environ.get("WANDB_DIR") or folder)
        self._run: Any = None
        self.place = str(self._folder / "wandb")

    @classmethod
    def check(cls) -> None:
        """Nothing but its package is needed; whether a key is there, its library finds out."""

    def held(self, sent: int) -> int:
        """As remembered of its last run that was online or offline as this one is, unless its files were removed."""
        kind = "offline-run" if _is_offline() else "run"
        return sent if any((self._folder / "wandb").glob(f"{kind}-*-{self._facts.run}")) else -1

    def write(self, points: Sequence[Point]) -> None:
        """Logs the points at their own times."""
        if self._run is None:
            self._open()
        for point in points:
            self._run.log({**point.values, "_timestamp": point.time_s}, step=point.step)

    def close(self, state: str | None) -> None:
        """Waits until all is written or uploaded."""
        if self._run is None:
            return
        run, self._run = self._run, None
        if state is not None:
            run.summary["state"] = state
        run.finish(exit_code=0 if state in (None, "finished", "stopped") else 1)
        if not _is_offline() and run.url:
            self.place = run.url

    def _open(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # Nothing of this machine but the points: no output, code, packages or load of the sending process.
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        facts = self._facts
        # W&B names a folder by the second and the id, and would write over one of the same second.
        while any((self._folder / "wandb").glob(f"*-{time.strftime('%Y%m%d_%H%M%S')}-{facts.run}")):
            time.sleep(0.05)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=facts.run,
            name=facts.name,
            tags=facts.tags,
            config=dict(facts.settings) | {"model": facts.model},
            dir=str(self._folder),
            resume="allow",
            settings=settings,
        )


def _is_offline() -> bool:
    with contextlib.suppress(AttributeError):  # of the library's own reading of its variables and settings files
        import wandb

        return wandb.setup().settings.mode in ("offline", "dryrun")
    return os.environ.get("WANDB_MODE") in ("offline", "dryrun")
