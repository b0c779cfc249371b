"""Memory of every rank's process over the steps."""

from hetplanner.plots.live import RunMemory
from hetplanner.ui.models.run import RunModel
from hetplanner.ui.models.session import Session
from hetplanner.ui.views.cards import card, chart, full_width, html_pane, page, set_html
from hetplanner.ui.views.run.section import Section
from hetplanner.ui.views.run.tables import html_table, note
from hetplanner.units import short_bytes


class Memory(Section):
    """Curves, and a row for every rank: most it held against what the plan expects and the device has."""

    signals = ("detail_changed",)

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        self.curves = RunMemory(height=300, dark=dark)
        self.figures = [self.curves]
        self.table = html_pane(margin=(4, 14, 12, 14))
        self.view = page(
            full_width(card("Memory of every rank (solid: its process, dashed: accelerator)", chart(self.curves))),
            full_width(card("Most that was held", self.table)),
        )

    def show(self) -> None:
        """As far as the steps have come."""
        reader, detail = self.model.reader, self.model.detail
        if detail is not None and detail.swarm is not None:
            self.curves.update(None)
            set_html(self.table, note("not told by the peers of a swarm: a device's memory is in its plan"))
            return
        self.curves.update(reader if detail is not None else None)
        if reader is None or detail is None or not reader.steps():
            set_html(self.table, note("comes with the first step"))
            return
        plan = reader.plan
        expected = {e.device: e for e in plan.estimate.devices} if plan.estimate is not None else {}
        rows = []
        for row, telemetry in zip(detail.comparison.ranks, reader.ranks, strict=True):
            estimate = expected.get(row.device)
            rows.append(
                [
                    str(row.rank),
                    row.device,
                    short_bytes(telemetry.peak_memory_bytes),
                    short_bytes(telemetry.peak_device_bytes),
                    short_bytes(estimate.peak_bytes) if estimate else "–",
                    short_bytes(estimate.limit_bytes) if estimate else "–",
                    str(telemetry.most_in_flight),
                    str(telemetry.most_held),
                ]
            )
        head = ["rank", "device", "process", "accelerator", "plan expects", "device may", "in flight", "messages held"]
        set_html(self.table, html_table(head, rows, numbers=6, height=420))
