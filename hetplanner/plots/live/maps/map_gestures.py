"""The scripts of the editable map: what lies under the pointer, and what a tap, a drag or a key tells the server."""

# Distances are in pixels, so that a small marker or a thin line is as easy to hit at every zoom.
_HIT = """
const per_px = (fig.x_range.end - fig.x_range.start) / fig.inner_width
const hit_dot = (x, y) => {
  const {x: xs, y: ys, dx, dy, id} = dots.data
  let best = 8, found = -1
  for (let i = 0; i < id.length; i++) {
    const away = Math.hypot((x - xs[i]) / per_px - dx[i], (ys[i] - y) / per_px - dy[i])
    if (away < best) { best = away; found = i }
  }
  return found
}
const hit_site = (x, y) => {
  const {x: xs, y: ys, size, name} = sites.data
  let best = 7, found = -1
  for (let i = 0; i < name.length; i++) {
    const away = Math.hypot((x - xs[i]) / per_px, (y - ys[i]) / per_px) - size[i] / 2
    if (away < best) { best = away; found = i }
  }
  return found
}
const hit_line = (x, y) => {
  const said = labels.data
  for (let i = 0; i < said.text.length; i++)
    if (Math.abs(x - said.x[i]) < 3.5 * said.text[i].length * per_px && Math.abs(y - said.y[i]) < 9 * per_px)
      return [said.start[i], said.end[i]]
  const {xs, ys, start, end} = lines.data
  let best = 7, found = ['', '']
  for (let i = 0; i < start.length; i++)
    for (let j = 1; j < xs[i].length; j++) {
      const dx = xs[i][j] - xs[i][j - 1], dy = ys[i][j] - ys[i][j - 1]
      const px = x - xs[i][j - 1], py = y - ys[i][j - 1]
      const share = Math.min(1, Math.max(0, (px * dx + py * dy) / (dx * dx + dy * dy || 1)))
      const away = Math.hypot(px - share * dx, py - share * dy) / per_px
      if (away < best) { best = away; found = [start[i], end[i]] }
    }
  return found
}
const say = (told) => {
  heard.count = (heard.count ?? 0) + 1
  const all = {
    site: '', device: '', other: '', x: 0, y: 0, x2: 0, y2: 0, shift: false,
    reach: isFinite(per_px) ? 12 * per_px : 0, count: heard.count, ...told,
  }
  heard.data = Object.fromEntries(Object.entries(all).map(([name, value]) => [name, [value]]))
}
"""
TAP = (
    _HIT
    + """
const {x, y} = cb_obj, shift = !!cb_obj.modifiers?.shift
const dot = hit_dot(x, y), at = dot < 0 ? hit_site(x, y) : -1
const [start, end] = dot < 0 && at < 0 ? hit_line(x, y) : ['', '']
const site = at < 0 ? start : sites.data.name[at]
say({kind: 'tap', site, other: end, device: dot < 0 ? '' : dots.data.id[dot], x, y, shift})
"""
)
# Over a marker a drag moves it, with Shift it links or spans a box, elsewhere it moves the map: the pan tool steps
# aside before the drag begins.
MOVE = (
    _HIT
    + """
if (!heard.dragging) pan.active = hit_site(cb_obj.x, cb_obj.y) < 0 && !cb_obj.modifiers?.shift
"""
)
# A finger comes from nowhere, so the place where the drag began is asked again.
DRAG_START = (
    _HIT
    + """
const {x, y} = cb_obj, shift = !!cb_obj.modifiers?.shift, row = hit_site(x, y)
const kind = row < 0 ? (shift ? 'box' : '') : shift || mode.data.mode[0] == 'link' ? 'link' : 'drag'
heard.dragging = kind ? {kind, row, x, y, x2: x, y2: y} : null
pan.active = !kind
"""
)
# The lines of a site go where it goes, and their labels half as far.
DRAG = """
const follow = (name, dx, dy) => {
  const {xs, ys, x0, y0, x1, y1, start, end} = lines.data
  for (let i = 0; i < start.length; i++) {
    if (start[i] == name) { x0[i] += dx; y0[i] += dy }
    else if (end[i] == name) { x1[i] += dx; y1[i] += dy }
    else continue
    const count = xs[i].length, top = 2 * bow * Math.hypot(x1[i] - x0[i], y1[i] - y0[i])
    const bent = (t, a, b, up) => (1 - t) * a + t * b + 2 * t * (1 - t) * up
    xs[i] = Array.from({length: count}, (_, j) => bent(j / (count - 1), x0[i], x1[i], 0))
    ys[i] = Array.from({length: count}, (_, j) => bent(j / (count - 1), y0[i], y1[i], top))
  }
  lines.change.emit()
  const said = labels.data
  for (let i = 0; i < said.start.length; i++)
    if (said.start[i] == name || said.end[i] == name) { said.x[i] += dx / 2; said.y[i] += dy / 2 }
  labels.change.emit()
}
if (heard.dragging) {
  const drag = heard.dragging, {row} = drag
  drag.x2 = cb_obj.x
  drag.y2 = cb_obj.y
  if (drag.kind == 'drag') {
    const old_x = sites.data.x[row], old_y = sites.data.y[row], name = sites.data.name[row]
    const dx = drag.x2 - old_x, dy = drag.y2 - old_y
    for (const source of [...followers, sites]) {
      const {x, y} = source.data
      let changed = false
      for (let i = 0; i < x.length; i++)
        if (x[i] == old_x && y[i] == old_y) { x[i] = drag.x2; y[i] = drag.y2; changed = true }
      if (changed) source.change.emit()
    }
    follow(name, dx, dy)
  } else if (drag.kind == 'link') {
    sketch.data = {xs: [[sites.data.x[row], drag.x2]], ys: [[sites.data.y[row], drag.y2]]}
  } else {
    const {x, y, x2, y2} = drag
    sketch.data = {xs: [[x, x2, x2, x, x]], ys: [[y, y, y2, y2, y]]}
  }
}
"""
DRAG_END = (
    _HIT
    + """
if (heard.dragging) {
  const {kind, row, x, y, x2, y2} = heard.dragging
  heard.dragging = null
  if (kind != 'drag') sketch.data = {xs: [], ys: []}
  if (kind == 'drag') say({kind, site: sites.data.name[row], x: sites.data.x[row], y: sites.data.y[row]})
  else if (kind == 'box') say({kind, x, y, x2, y2})
  else {
    const end = hit_site(x2, y2)
    if (end >= 0 && end != row) say({kind, site: sites.data.name[row], other: sites.data.name[end]})
  }
}
"""
)
# Keys of the whole page, but not those typed into a field.
KEYS = (
    _HIT
    + """
if (!heard.listens) {
  heard.listens = true
  document.addEventListener('keydown', (e) => {
    const at = e.composedPath()[0]
    const types = at && (at.isContentEditable || at.tagName == 'TEXTAREA' || at.tagName == 'SELECT' ||
      (at.tagName == 'INPUT' && !/^(button|checkbox|radio|range|submit)$/.test(at.type)))
    if (types || fig.document == null) return
    const held = e.ctrlKey || e.metaKey, key = e.key.toLowerCase()
    const meaning = held && key == 'z' ? (e.shiftKey ? 'redo' : 'undo') : held && key == 'y' ? 'redo'
      : held || e.altKey ? '' : key == 'delete' || key == 'backspace' ? 'delete' : key == 'escape' ? 'escape' : ''
    if (meaning) {
      if (held) e.preventDefault()
      say({kind: 'key', site: meaning})
    }
  })
}
"""
)
