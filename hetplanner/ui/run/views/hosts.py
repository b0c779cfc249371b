"""How busy the hosts are, and the memory of every rank's process."""

from hetplanner.plots.live import HostLoads, HostTraffic, RunMemory
from hetplanner.runs.reading.reader import RunReader
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.run.views.tables import html_table, note
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.widgets.cards import card, chart, full_width, html_pane, page, set_html, side_by_side
from hetplanner.units import short_bytes, short_rate


class Hosts(Section):
    """Curves, a row for every host as it is now, and one for every rank: most it held against what the plan expects."""

    signals = ("detail_changed",)

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        self.curves = RunMemory(height=300, dark=dark)
        self.busy, self.traffic = HostLoads(dark=dark), HostTraffic(dark=dark)
        self.figures = [self.busy, self.traffic, self.curves]
        self.hosts = html_pane(margin=(4, 14, 12, 14))
        self.table = html_pane(margin=(4, 14, 12, 14))
        self.view = page(
            side_by_side(
                card("Processors (solid) and GPUs (dashed) in use", chart(self.busy)),
                card("Sent (solid) and received (dashed)", chart(self.traffic)),
            ),
            full_width(card("Hosts now, with all that runs on them", self.hosts)),
            full_width(card("Memory of every rank (solid: its process, dashed: accelerator)", chart(self.curves))),
            full_width(card("Most that was held", self.table)),
        )

    def show(self) -> None:
        """As far as the steps have come."""
        reader, detail = self.model.reader, self.model.detail
        is_swarm = detail is not None and detail.swarm is not None
        self._show_hosts(None if is_swarm else reader)
        if is_swarm:
            self.curves.update(None)
            set_html(self.table, note("not told by the peers of a swarm: a device's memory is in its plan"))
            return
        self.curves.update(reader if detail is not None else None)
        if reader is None or detail is None or not reader.steps():
            set_html(self.table, note("shown from the first step"))
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

    def _show_hosts(self, reader: RunReader | None) -> None:
        self.busy.update(reader)
        self.traffic.update(reader)
        told = [t.loads for t in reader.ranks if t.loads] if reader is not None else []
        if not told:
            set_html(self.hosts, note("told by the ranks of a plan once a second; not by the peers of a swarm"))
            return
        now = [(loads[-1], next((s.gpus for s in reversed(loads) if s.gpus), ())) for loads in told]
        rows = [
            [
                s.host,
                f"{s.cpu:.0%}",
                f"{s.memory:.0%}",
                ", ".join(f"{busy:.0%} ({used:.0%})" for busy, used in gpus) or "–",
                short_rate(s.sent),
                short_rate(s.received),
                short_rate(s.loopback),
            ]
            for s, gpus in now
        ]
        head = ["host", "processors", "memory", "GPUs (their memory)", "sent", "received", "over loopback"]
        set_html(self.hosts, html_table(head, rows, numbers=6, height=320))
