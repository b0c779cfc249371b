"""Several runs in one figure and in one CSV: which, what of them, and over what."""

import contextlib
from pathlib import Path
from typing import Any

import param

from hetplanner.errors import HetplannerError
from hetplanner.plots.data.curves import Columns
from hetplanner.plots.data.runs.run_overlays import AXES, VALUES, overlay_columns
from hetplanner.runs.annotations import known_annotations
from hetplanner.runs.directory import list_run_ids
from hetplanner.runs.reading.series import Prices, prices_of, runs_csv, step_columns
from hetplanner.ui.watch import RunWatch, watch_run

MAX_OVERLAID = 6


class OverlayModel(param.Parameterized):
    """The chosen runs; read on while they are shown."""

    runs = param.List(default=[], doc="Ids, at most MAX_OVERLAID of them.")
    value: Any = param.Selector(default="loss", objects=list(VALUES))
    over: Any = param.Selector(default="steps", objects=list(AXES))
    words = param.String(default="", doc="What is not shown, and why.")
    changed = param.Event()

    def __init__(self, home: Path | None, **params: Any) -> None:
        super().__init__(**params)
        self._home = home
        self._watches: dict[str, RunWatch] = {}
        self._prices: dict[str, Prices | None] = {}
        self._read: tuple[int, ...] = ()
        self.param.watch(self._chosen, "runs")
        self.param.watch(lambda _: self.param.trigger("changed"), ["value", "over"])

    def _chosen(self, *_: Any) -> None:
        known = list_run_ids(self._home)
        runs = [run for run in self.runs if run in known][:MAX_OVERLAID]
        if runs != self.runs:  # what a page chooses may be anything
            self.runs = runs
            return
        self._watches = {run: self._watches.get(run) or watch_run(self._home, run) for run in runs}
        self._read = ()
        self.read()
        self.param.trigger("changed")

    def read(self) -> None:
        """Reads on in all of them; a damaged one is left out, and named."""
        troubles = []
        for watch in self._watches.values():
            try:
                watch.refresh()
            except HetplannerError as error:
                troubles.append(str(error))
        read = tuple(len(watch.reader.steps()) for watch in self._watches.values())
        if read != self._read or "\n".join(troubles) != self.words:
            self._read, self.words = read, "\n".join(troubles)
            self.param.trigger("changed")

    def lines(self) -> list[tuple[str, Columns]]:
        """Label, and x and y of every run that can be shown."""
        found = []
        for run, watch in self._watches.items():
            try:
                prices = self._price(run, watch) if self.over == "dollars" else None
                columns = overlay_columns(step_columns(watch.reader.steps(), prices), self.value, self.over)
            except HetplannerError:
                continue
            found.append((known_annotations(watch.reader.directory.path).name or run, columns))
        return found

    def token_words(self) -> set[str]:
        """What the throughputs of these runs count."""
        found = set()
        for watch in self._watches.values():
            with contextlib.suppress(HetplannerError):
                found.add(watch.reader.any_plan.problem.workload.token_word)
        return found

    def _price(self, run: str, watch: RunWatch) -> Prices | None:
        if run not in self._prices:
            self._prices[run] = prices_of(watch.reader.any_plan)
        return self._prices[run]

    def csv(self) -> bytes:
        """A row a step of every run."""
        readers = {run: watch.reader for run, watch in self._watches.items()}
        said = {run: known_annotations(reader.directory.path) for run, reader in readers.items()}
        return runs_csv(readers, said).encode()
