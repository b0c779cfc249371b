"""A run's traffic on the map: every direction between two sites against the limit of its links."""

from collections.abc import Sequence

from hetplanner.cluster.model import Cluster
from hetplanner.plots.data.maps.traffic import LOAD_NAMES, LOW, STEPS, load_columns
from hetplanner.plots.live.base import empty_source, put
from hetplanner.plots.live.maps.device_map import DeviceMap
from hetplanner.runs.reading.loads import SiteLoad


class TrafficMap(DeviceMap):
    """Sites, and arcs whose colour and width say how full the fullest link between two sites is."""

    def __init__(self, *, dark: bool = False, height: int = 360) -> None:
        super().__init__(dark=dark, height=height)
        self.load_source = empty_source(*LOAD_NAMES)
        loads = self.figure.multi_line(
            "xs", "ys", source=self.load_source, line_color="colour", line_width="width", line_alpha=0.9
        )
        # Below the sites' markers and names.
        self.figure.renderers.remove(loads)
        self.figure.renderers.insert(self.figure.renderers.index(self.sites), loads)
        self._add_tips(
            [loads],
            [("", "@sites"), ("in all", "@rate"), ("fullest link", "@busiest"), ("uses", "@share of @limit")],
            line_policy="interp",
        )
        levels = [LOW, *((colour, words) for _, colour, words in reversed(STEPS))]
        self._add_legend([(words, [self._stroke(line_color=colour, line_width=4)]) for colour, words in levels])
        self._recolour()

    def show_loads(self, cluster: Cluster | None, loads: Sequence[SiteLoad]) -> None:
        """Shows a run's cluster and what runs between its sites; None empties the map."""
        self.update(cluster)
        put(self.load_source, load_columns(cluster, loads) if cluster else {name: [] for name in LOAD_NAMES})
