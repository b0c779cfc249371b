"""All runs of this home, the newest first; a click shows one."""

from dataclasses import asdict

import pandas as pd
import panel as pn

from hetplanner.ui.models.run import RunModel
from hetplanner.ui.models.session import Session
from hetplanner.ui.models.texts import seconds_text
from hetplanner.ui.views.binding import on_click
from hetplanner.ui.views.cards import card, full_width, page
from hetplanner.ui.views.run.section import Section

_COLUMNS = {"": 40, "run": 330, "state": 90, "kind": 100, "began": 160, "lasted": 90, "ranks": 70, "message": 420}


class RunList(Section):
    """A table; the run that is shown bears a mark."""

    signals = ("runs", "selected")

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        self.table = pn.widgets.Tabulator(
            pd.DataFrame(columns=list(_COLUMNS)),
            show_index=False,
            disabled=True,
            selectable=False,
            height=460,
            layout="fit_data_stretch",
            widths=_COLUMNS,
            sizing_mode="stretch_width",
            margin=(4, 12, 12, 12),
        )
        on_click(self.table, self._clicked)
        self.view = page(full_width(card("Runs, the newest first (click one to see it)", self.table)))

    def _clicked(self, event: object) -> None:
        row = getattr(event, "row", -1)
        if 0 <= row < len(self.model.runs):
            self.model.select(self.model.runs[row].run)
            self.model.section = "progress"

    def show(self) -> None:
        """The list as it is."""
        rows = []
        for r in self.model.runs:
            mark = "▶" if r.run == self.model.selected else ""
            rows.append({"": mark, **asdict(r), "lasted": seconds_text(r.lasted_s)})
        self.table.value = pd.DataFrame(rows, columns=list(_COLUMNS))
