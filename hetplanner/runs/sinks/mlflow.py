"""MLflow: the server that MLFLOW_TRACKING_URI names, or a database in the run's folder."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from hetplanner.runs.sinks.interface import ALWAYS, Point, RunFacts

EXPERIMENT = "hetplanner"
RUN_TAG = "hetplanner.run"
MAX_BATCH = 900
"""Metrics of one request; a server takes 1000."""
MAX_PARAM = 500
STATES = {"finished": "FINISHED", "stopped": "KILLED", "preempted": "KILLED"}
"""Of a run -> of MLflow; what is not here has failed."""


class MlflowSink:
    """A run of MLflow with our run's id as a tag. What it holds already, the store itself is asked."""

    modules: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, facts: RunFacts, folder: Path) -> None:
        """Not connected yet."""
        self._facts = facts
        self._folder = folder
        self._client: Any = None
        self._run_id = ""
        self._wrote = False
        is_remote = bool(os.environ.get("MLFLOW_TRACKING_URI"))
        self._local = None if is_remote else f"sqlite:///{folder / 'mlflow.db'}"
        self.place = self._local or "MLFLOW_TRACKING_URI"

    @classmethod
    def check(cls) -> None:
        """Nothing but its packages is needed."""

    def held(self, sent: int) -> int:
        """As the store says."""
        if self._client is None:
            self._open()
        history = self._client.get_metric_history(self._run_id, ALWAYS)
        return max((metric.step for metric in history), default=-1)

    def write(self, points: Sequence[Point]) -> None:
        """Logs the points at their own times, each of them whole."""
        from mlflow.entities import Metric

        batch: list[Any] = []
        for point in points:
            time_ms = round(1e3 * point.time_s)
            found = [Metric(name, value, time_ms, point.step) for name, value in point.values.items()]
            if len(batch) + len(found) > MAX_BATCH:
                self._client.log_batch(self._run_id, metrics=batch)
                batch = []
            batch += found
        self._client.log_batch(self._run_id, metrics=batch)
        self._wrote = True

    def close(self, state: str | None) -> None:
        """Tells how the run ended."""
        if self._client is not None and state is not None:
            self._client.set_terminated(self._run_id, STATES.get(state, "FAILED"))
        self._client = None

    def _open(self) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a sender tries again by itself
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        client = MlflowClient(self._local) if self._local else MlflowClient()
        facts = self._facts
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        known = client.get_experiment_by_name(name)
        location = f"file://{self._folder / 'mlflow'}" if self._local else None
        experiment = known.experiment_id if known is not None else client.create_experiment(name, location)
        runs = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{facts.run}'", max_results=1)
        if runs:
            self._run_id = runs[0].info.run_id
        else:
            tags = {RUN_TAG: facts.run, **{f"hetplanner.tag.{i}": tag for i, tag in enumerate(facts.tags)}}
            self._run_id = client.create_run(experiment, tags=tags, run_name=facts.name).info.run_id
            self._log_params(client)
        self._client = client

    def _log_params(self, client: Any) -> None:
        from mlflow.entities import Param

        values = {"model": self._facts.model} | dict(self._facts.settings)
        client.log_batch(self._run_id, params=[Param(name, str(v)[:MAX_PARAM]) for name, v in values.items()])
