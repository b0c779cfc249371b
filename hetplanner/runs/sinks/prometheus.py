"""Prometheus: a file for node_exporter's textfile collector.

A file needs no port: an endpoint on loopback could be read by every user of the machine, and ends with its process.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from hetplanner.atomic_files import write_whole
from hetplanner.errors import InvalidInput
from hetplanner.runs.sinks.interface import METRICS, Point, RunFacts

FOLDER_VARIABLE = "HETPLANNER_PROMETHEUS_DIR"
"""Names the folder that node_exporter's `--collector.textfile.directory` reads."""


class PrometheusSink:
    """The newest values of a run; each write replaces the file."""

    modules: ClassVar[tuple[str, ...]] = ("prometheus_client",)

    def __init__(self, facts: RunFacts, folder: Path) -> None:
        """In the collector's folder, else in `folder/prometheus`."""
        shared = os.environ.get(FOLDER_VARIABLE)
        self._is_shared = bool(shared)
        self._path = (Path(shared) if shared else folder / "prometheus") / f"hetplanner-{facts.run}.prom"
        self._labels = {"run": facts.run, "name": facts.name, "model": facts.model}
        self._point: Point | None = None
        self.place = str(self._path)

    @classmethod
    def check(cls) -> None:
        """Refuses a collector's folder that cannot be written."""
        shared = os.environ.get(FOLDER_VARIABLE)
        if shared and not (Path(shared).is_absolute() and Path(shared).is_dir() and os.access(shared, os.W_OK)):
            raise InvalidInput(
                f"sink prometheus: {FOLDER_VARIABLE} must be the absolute path of a folder that you may write, got"
                f" {shared!r:.200}"
            )

    def held(self, sent: int) -> int:
        """Nothing: a file is written anew, with the same values."""
        return -1

    def write(self, points: Sequence[Point]) -> None:
        """Replaces the file. Raises OSError."""
        self._point = points[-1]
        self._write("")

    def close(self, state: str | None) -> None:
        """Says in the file that the run is over."""
        if state is not None and self._point is not None:
            self._write(state)

    def _write(self, state: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

        assert self._point is not None
        registry, names = CollectorRegistry(), tuple(self._labels)

        def gauge(name: str, words: str, value: float) -> None:
            Gauge(f"hetplanner_{name}", words, names, registry=registry).labels(**self._labels).set(value)

        gauge("step", "the newest step, from 0", self._point.step)
        gauge("step_end_time_seconds", "unix time at which the newest step ended", self._point.time_s)
        gauge("run_over", "1 when the run is over", float(bool(state)))
        for name, value in self._point.values.items():
            if name == "sent_bytes":
                sent = Counter("hetplanner_sent_bytes", METRICS[name], names, registry=registry)
                sent.labels(**self._labels).inc(value)
            else:
                gauge(name, METRICS[name], value)
        lines = generate_latest(registry).decode().splitlines(keepends=True)
        # When a counter was made says nothing of the run.
        text = "".join(line for line in lines if "_created" not in line.partition("{")[0])
        if not self._is_shared:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(self._path, text, mode=0o644)
        if self._is_shared:
            self._path.chmod(0o644)  # node_exporter is another user, and a umask may be 077
