"""The replay of a search: a slider that shows each of its improvements in curve, map, grid and cost bars.

All moments are sent to the browser once; it draws them by itself, so that the same works in a file without a server.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import CustomJS, Div, InlineStyleSheet, Slider, Toggle

from hetplanner.cluster.model import Cluster
from hetplanner.cost.terms import term_label
from hetplanner.planners.search.moments import Moment
from hetplanner.plots.data.curves import EARLIEST_S
from hetplanner.plots.data.maps.maps import site_columns
from hetplanner.plots.data.search.films import PACE_MS, moment_texts
from hetplanner.plots.live.base import FONT, empty_source, put
from hetplanner.plots.live.maps.device_map import DeviceMap
from hetplanner.plots.live.search.allocation_grid import MOST_ROW_LABELS, AllocationGrid
from hetplanner.plots.live.search.convergence_curve import ConvergenceCurve
from hetplanner.plots.live.search.cost_bars import CostBars
from hetplanner.plots.theme import DARK_INK, LINE_COLOURS, ink_on, site_colour
from hetplanner.units import short_seconds

_CODE = (Path(__file__).parent / "replay.js").read_text(encoding="utf-8")
FLASH = "#EE6677"
_MOVED = _CODE + "if (count()) show(Math.min(slider.value, count() - 1))"
# While the search goes on its plans come from the server: what moved flashes too.
_SERVED = """
if (!state.own.has(grid.data)) {
  restore()  // what else the server made stays, what was ours goes
  const now = []
  const at = (i) => devices.data.id.indexOf(grid.data.device[i])
  grid.data.stage.forEach((s, i) => (now[s] ??= [])[grid.data.replica[i]] = at(i))
  for (let s = 0; s < now.length; s++) now[s] ??= []
  flash(state.seen, now)
  state.seen = now
}
"""
_NEW = """
cancelAnimationFrame(state.playing)
restore()
state.seen = null
put(mark, {data: {x: [], y: []}})
const last = Math.max(count() - 1, 1)
slider.setv({end: last, value: last}, {sync: false})
"""
_PLAY = """
cancelAnimationFrame(state.playing)
if (toggle.active) {
  if (slider.value >= slider.end) slider.setv({value: 0}, {sync: false})
  const every = Math.max(%d, Math.min(%d, %d / Math.max(count(), 1)))
  let due = performance.now() + every
  const play = (now) => {
    if (slider.value >= slider.end || !count()) { toggle.active = false; return }
    if (now >= due) {
      due = Math.max(due + every, now)  // what a busy browser is late with is not made up by leaping
      slider.setv({value: slider.value + 1}, {sync: false})
    }
    state.playing = requestAnimationFrame(play)
  }
  state.playing = requestAnimationFrame(play)
}
toggle.label = toggle.active ? "Pause" : "Replay"
"""
_STYLE = """
:host { color: inherit; font-family: %s; }
.bk-btn, .bk-btn:hover, .bk-btn.bk-active { background: transparent; color: inherit; border-color: currentColor; }
.noUi-target { background: color-mix(in srgb, currentColor 22%%, transparent); border: none; box-shadow: none; }
.noUi-connect { background: #4477AA; }
"""


class Replay:
    """Joins figures that show the best plan of one search; `controls` is what moves them.

    Args:
        curve, world, grid, bars: the figures; the bars' first estimate is the plan's.
    """

    def __init__(self, curve: ConvergenceCurve, world: DeviceMap, grid: AllocationGrid, bars: CostBars) -> None:
        self.moments = empty_source("seconds", "value", "evaluations", "first", "row", "depth", "terms", "step", "text")
        self.places, self.sizes = empty_source("device"), empty_source("size")
        self.devices = empty_source("id", "kind", "host", "site", "colour", "dark")
        self.sites = empty_source("name", "label", "x", "y")
        flashes, mark = empty_source("stage", "y"), empty_source("x", "y")
        grid.figure.rect(
            "stage", "y", width=0.97, height=0.94, source=flashes, fill_alpha=0, line_color=FLASH, line_width=3
        )
        curve.figure.vspan(x="x", source=mark, line_color=FLASH, line_width=1.5)
        curve.figure.scatter("x", "y", source=mark, size=10, color=FLASH)
        style = InlineStyleSheet(css=_STYLE % FONT)
        self.slider = Slider(
            start=0, end=1, value=1, step=1, title="", show_value=False, tooltips=False, sizing_mode="stretch_width",
            stylesheets=[style], name="replay",
        )  # fmt: skip
        self.toggle = Toggle(label="Replay", width=90, height=30, stylesheets=[style])
        self.words = Div(
            text="",
            sizing_mode="stretch_width",
            stylesheets=[style],
            styles={"font-size": "12px", "min-height": "34px"},
        )
        self.controls = column(
            row(self.toggle, self.slider, sizing_mode="stretch_width"), self.words, sizing_mode="stretch_width",
            visible=False, margin=(0, 8, 0, 8),
        )  # fmt: skip
        self._args = {
            "slider": self.slider, "toggle": self.toggle, "words": self.words, "moments": self.moments,
            "places": self.places, "sizes": self.sizes, "devices": self.devices, "sites": self.sites,
            "flashes": flashes, "mark": mark, "route_colours": list(LINE_COLOURS), "most_row_labels": MOST_ROW_LABELS,
            "grid": grid.source, "heads": grid.head_source, "grid_figure": grid.figure,
            "grid_x": grid.figure.x_range, "grid_y": grid.figure.y_range,
            "stage_axis": grid.figure.xaxis[0], "replica_axis": grid.figure.yaxis[0],
            "arcs": world.arc_source, "shared": world.shared_source, "badges": world.badge_source,
            "names": world.name_source, "bars": bars.source, "totals": bars.total_source, "bars_x": bars.figure.x_range,
        }  # fmt: skip
        self.slider.js_on_change("value", self._script(_MOVED))
        self.toggle.js_on_change("active", self._script(_CODE + _PLAY % PACE_MS))
        self.moments.js_on_change("data", self._script(_CODE + _NEW))
        grid.source.js_on_change("data", self._script(_CODE + _SERVED))

    def _script(self, code: str) -> CustomJS:
        return CustomJS(args=self._args, code=code)

    def update(
        self,
        moments: Sequence[Moment],
        cluster: Cluster | None,
        said: Callable[[float], str] = short_seconds,
        offset_s: float = 0.0,
    ) -> None:
        """Takes the moments of a search, in order; none while it goes on.

        Args:
            moments: device indices are those of `cluster`; the last one is what the figures show.
            cluster: of the problem.
            said: a value of the objective in words.
            offset_s: seconds of search before, where it was resumed.
        """
        if cluster is not None:
            self._show_cluster(cluster)
        rows = [[len(stage) for stage in m.stages] for m in moments]
        flat = [[d for stage in m.stages for d in stage] for m in moments]
        put(self.places, {"device": np.array([d for row in flat for d in row], dtype=np.int32)})
        put(self.sizes, {"size": np.array([n for row in rows for n in row], dtype=np.int32)})
        columns: dict[str, list[Any]] = {
            "seconds": [max(m.searched_s + offset_s, EARLIEST_S) for m in moments],
            "value": [m.value for m in moments],
            "evaluations": [m.evaluations for m in moments],
            "first": _starts(flat),
            "row": _starts(rows),
            "depth": [len(row) for row in rows],
            "terms": [[[term_label(term), s, short_seconds(s)] for term, s in m.terms.items()] for m in moments],
            "step": [short_seconds(sum(m.terms.values())) for m in moments],
            "text": moment_texts(moments, said, offset_s),
        }
        put(self.moments, columns)
        last = max(len(moments) - 1, 1)
        self.slider.update(end=last, value=last)
        self.toggle.update(active=False, label="Replay")
        self.words.text = columns["text"][-1] if moments else ""
        self.controls.visible = len(moments) > 1

    def _show_cluster(self, cluster: Cluster) -> None:
        colours = [site_colour(int(s)) for s in cluster.site_index_D]
        put(
            self.devices,
            {
                "id": list(cluster.device_ids),
                "kind": [d.kind for d in cluster.devices],
                "host": [d.host or "" for d in cluster.devices],
                "site": [int(s) for s in cluster.site_index_D],
                "colour": colours,
                "dark": [ink_on(colour) == DARK_INK for colour in colours],
            },
        )
        sites = site_columns(cluster)
        put(self.sites, {name: sites[name] for name in ("name", "label", "x", "y")})


def _starts(rows: Sequence[Sequence[int]]) -> list[int]:
    """Where each row begins in all of them one behind the other."""
    return [0, *np.cumsum([len(row) for row in rows]).tolist()][: len(rows)]
