"""Map, grid and memory light up together: what is pointed at or clicked in one is shown in all.

All of it happens in the browser; the server only hears of clicks. What is lit is a set of the grid's rows, from which
the devices, sites and arcs follow.
"""

from collections.abc import Callable

from bokeh.models import ColumnDataSource, CustomJS, GlyphRenderer, HoverTool

from hetplanner.plots.live.base import put
from hetplanner.plots.live.maps.device_map import DeviceMap
from hetplanner.plots.live.search.allocation_grid import AllocationGrid
from hetplanner.plots.live.search.memory_bars import MemoryBars

Focus = tuple[str, str]
"""('device', id), ('stage', its number), ('site', name), or ('', '')."""
NOTHING: Focus = ("", "")

# In all snippets: `hovered` says by slot which rows are pointed at; several hover tools report, most of them nothing.
_SHARED = """
const rows_of = (kind, name) => {
  const column = {device: "device", stage: "stage", site: "site"}[kind]
  if (column === undefined) return null
  const rows = []
  const values = grid.data[column]
  for (let i = 0; i < values.length; i++) if (String(values[i]) === name) rows.push(i)
  return rows.length ? rows : null
}
const where = (source, test) => {
  const found = [], n = source.get_length() ?? 0
  for (let i = 0; i < n; i++) if (test(i)) found.push(i)
  return found
}
const pick = (source, indices) => {
  const old = source.selected.indices
  if (old.length !== indices.length || old.some((v, i) => v !== indices[i]))
    source.selected.setv({indices}, {sync: false})
}
const state = (globalThis.__hetplanner_light ??= {})[focus.id] ??= {hovered: {}}
const show = () => {
  const now = Object.values(state.hovered).find((h) => h) ?? null
  const pinned = focus.data.kind[0] ? rows_of(focus.data.kind[0], focus.data.name[0]) : null
  const rows = now ? now.rows : pinned
  if (!rows) { for (const source of [grid, heads, memory, sites, arcs]) pick(source, []); return }
  const devices = new Set(rows.map((i) => grid.data.device[i]))
  const places = new Set(rows.map((i) => grid.data.site[i]))
  const stages = new Set(rows.map((i) => grid.data.stage[i]))
  pick(grid, rows)
  pick(heads, where(heads, (i) => stages.has(heads.data.stage[i])))
  pick(memory, where(memory, (i) => devices.has(memory.data.device[i])))
  pick(sites, where(sites, (i) => places.has(sites.data.name[i])))
  const touched = now?.arcs ?? where(arcs, (i) => devices.has(arcs.data.start[i]) || devices.has(arcs.data.end[i]))
  // No arc lit would show all of them: devices whose routes stay inside their site have none.
  pick(arcs, touched.length ? touched : [-1])
}
"""
_HOVER = (
    _SHARED
    + """
const at = cb_data.index?.indices ?? []
const target = at.length ? find(at[0]) : null
const before = state.hovered[slot]
if ((target?.key ?? null) !== (before?.key ?? null)) {
  state.hovered[slot] = target
  show()
}
"""
)
_FIND = {
    "cell": """const find = (i) => ({key: "d" + i, kind: "device", name: grid.data.device[i], rows: [i]})""",
    "head": """const find = (i) => ({key: "s" + i, kind: "stage", name: String(heads.data.stage[i]),
                                     rows: rows_of("stage", String(heads.data.stage[i]))})""",
    "memory": """const find = (i) => ({key: "m" + i, kind: "device", name: memory.data.device[i],
                                       rows: rows_of("device", memory.data.device[i])})""",
    "site": """const find = (i) => ({key: "p" + i, kind: "site", name: sites.data.name[i],
                                     rows: rows_of("site", sites.data.name[i])})""",
    "arc": """const find = (i) => {
      const ends = [arcs.data.start[i], arcs.data.end[i]]
      return {key: "a" + i, kind: "", name: "", arcs: [i], rows: where(grid, (k) => ends.includes(grid.data.device[k]))}
    }""",
    "badge": """const find = (i) => {
      const [a, b] = badges.data.text[i].split("–").map(Number), place = badges.data.site[i]
      const rows = where(grid, (k) => grid.data.site[k] === place && grid.data.stage[k] >= a
                                      && grid.data.stage[k] <= (b ?? a))
      return rows.length ? {key: "b" + i, kind: b === undefined ? "stage" : "", name: String(a), rows} : null
    }""",
}
_TAP = (
    _SHARED
    + """
const now = Object.values(state.hovered).find((h) => h && h.kind)
const [kind, name] = [focus.data.kind[0], focus.data.name[0]]
const same = now && now.kind === kind && now.name === name
const next = now && !same ? [now.kind, now.name] : ["", ""]
if (next[0] !== kind || next[1] !== name) focus.data = {kind: [next[0]], name: [next[1]]}
"""
)


class CrossLight:
    """Joins a map, a grid and memory bars that show the same plan.

    Args:
        world, grid, memory: the figures.
        on_click: called with what was clicked; ('', '') lets go.
    """

    def __init__(
        self, world: DeviceMap, grid: AllocationGrid, memory: MemoryBars, on_click: Callable[[Focus], object]
    ) -> None:
        self.source = ColumnDataSource({"kind": [""], "name": [""]})
        self._args = {
            "focus": self.source, "grid": grid.source, "heads": grid.head_source, "memory": memory.source,
            "sites": world.site_source, "arcs": world.arc_source, "badges": world.badge_source,
        }  # fmt: skip
        slots = (
            (grid, "cell", grid.cells), (grid, "head", grid.heads), (memory, "memory", memory.limits),
            (world, "arc", world.arcs), (world, "site", world.sites), (world, "badge", world.badges),
        )  # fmt: skip
        for live, slot, renderer in slots:
            code = f"const slot = {slot!r}\n" + _HOVER.replace("const at =", f"{_FIND[slot]}\nconst at =", 1)
            hover = HoverTool(renderers=[renderer], tooltips=None, callback=self._script(code), visible=False)
            live.figure.add_tools(hover)
        for live in (world, grid, memory):
            live.figure.js_on_event("tap", self._script(_TAP))
        show = self._script(_SHARED + "show()")
        for source in (self.source, grid.source, memory.source, world.site_source, world.arc_source):
            source.js_on_change("data", show)
        self._renderers = [*grid.figure.renderers, *memory.figure.renderers, world.arcs, world.sites]
        for renderer in self._renderers:
            dim_unselected(renderer)
        self.source.on_change("data", lambda _attr, _old, data: on_click((data["kind"][0], data["name"][0])))

    def _script(self, code: str) -> CustomJS:
        return CustomJS(args=self._args, code=code)

    def show(self, focus: Focus) -> None:
        """Lights what the page says is clicked."""
        put(self.source, {"kind": [focus[0]], "name": [focus[1]]})

    def recolour(self) -> None:
        """After the figures have changed their colours for another theme."""
        for renderer in self._renderers:
            colours = {name: getattr(renderer.glyph, name) for name in _COLOURS if name in renderer.glyph.properties()}
            renderer.nonselection_glyph.update(**colours)
            renderer.selection_glyph.update(**colours)


_COLOURS = ("fill_color", "line_color", "text_color")


def dim_unselected(renderer: GlyphRenderer) -> None:
    """What is not lit is pale while something is; lit ones look as always."""
    glyph = renderer.glyph
    pale = {
        name: alpha
        for name, alpha in (("fill_alpha", 0.18), ("line_alpha", 0.1), ("text_alpha", 0.35))
        if name in glyph.properties()
    }
    renderer.selection_glyph = glyph.clone()
    renderer.nonselection_glyph = glyph.clone(**pale)
