// Shows one moment of a search in the figures: map, grid, cost bars, and a mark on the curve. Nothing of it goes to a
// server: `put` changes a model for this page alone. At the last moment the figures are as the server made them.
const state = (globalThis.__hetplanner_replay ??= {})[slider.id] ??=
  {saved: null, own: new WeakSet(), put: new Map(), seen: null, shown: 0}
const put = (model, values) => {
  model.setv(values, {sync: false})
  // As the model holds them: what is no longer so when we look again came from the server.
  state.put.set(model, {...state.put.get(model), ...Object.fromEntries(Object.keys(values).map((n) => [n, model[n]]))})
  if (values.data) state.own.add(model.data)
}
// Equal data need not be drawn again.
const put_data = (source, rows) => {
  const data = columns(Object.keys(source.data), rows)
  if (JSON.stringify(data) !== JSON.stringify(source.data)) put(source, {data})
}
// A new text of the model would have the whole page laid out anew, at every moment.
const say = (text) => {
  state.line ??= Bokeh.index.find_one(words)?.markup_el
  if (state.line) state.line.textContent = text
}
const count = () => moments.get_length() ?? 0

// -- what was there before ----------------------------------------------------------------------------
const kept = [
  ...[grid, heads, arcs, shared, badges, bars, totals].map((source) => [source, ["data"]]),
  ...[grid_x, grid_y, bars_x].map((range) => [range, ["start", "end"]]),
  ...[stage_axis, replica_axis].map((axis) => [axis, ["major_label_overrides"]]),
  ...[stage_axis, replica_axis].map((axis) => [axis.ticker, ["ticks"]]),
]
const save = () => {
  state.saved ??= kept.map(([model, names]) => Object.fromEntries(names.map((name) => [name, model[name]])))
}
const restore = () => {
  if (state.saved) kept.forEach(([model, names], i) => {
    const ours = names.filter((name) => state.put.get(model)?.[name] === model[name])
    if (ours.length) put(model, Object.fromEntries(ours.map((name) => [name, state.saved[i][name]])))
  })
  state.saved = null
  state.put.clear()
}

// -- a moment's data ----------------------------------------------------------------------------------
const stages_at = (i) => {
  const rows = []
  let at = moments.data.first[i]
  for (let s = 0; s < moments.data.depth[i]; s++) {
    const size = sizes.data.size[moments.data.row[i] + s]
    rows.push(Array.from(places.data.device.slice(at, at + size)))
    at += size
  }
  return rows
}
const columns = (names, rows) => Object.fromEntries(names.map((name) => [name, rows.map((row) => row[name] ?? "")]))
const short = (text, limit) => {
  if (text.length <= limit) return text
  const tail = Math.floor((limit - 1) / 2)
  return limit > 1 ? text.slice(0, limit - 1 - tail) + "…" + (tail ? text.slice(-tail) : "") : "…"
}

const show_grid = (stages) => {
  const height = Math.max(...stages.map((row) => row.length))
  const chars = Math.floor((grid_figure.inner_width || 560) / stages.length / 6.2)
  const lines = Math.floor(0.9 * (grid_figure.inner_height || 330) / height / 13)
  const d = devices.data, rows = []
  stages.forEach((row, stage) => row.forEach((k, replica) => {
    const text = chars > 3 ? [short(d.id[k], chars), short(d.kind[k], chars)].slice(0, Math.max(lines, 0)).join("\n") : ""
    rows.push({stage, replica, y: -replica, device: d.id[k], kind: d.kind[k], site: sites.data.name[d.site[k]],
      host: d.host[k], rank: "–", colour: d.colour[k], text, text_dark: d.dark[k] ? text : "",
      text_light: d.dark[k] ? "" : text, ops: "–", params: "–", share: "–", busy: "–", memory: "–"})
  }))
  rows.sort((a, b) => sites.data.name.indexOf(a.site) - sites.data.name.indexOf(b.site))
  put_data(grid, rows)
  if (heads.data.stage.length != stages.length || grid_y.start != 0.5 - height) {
    const bar = heads.data.height[0] ?? 0.6
    put(grid_x, {start: -0.5, end: stages.length - 0.5})
    put(grid_y, {start: 0.5 - height, end: 0.55 + bar})
    label(stage_axis, stages.map((_, s) => [s, ""]))
    const every = Math.ceil(height / most_row_labels)
    const numbers = Array.from({length: Math.ceil(height / every)}, (_, i) => i * every)
    label(replica_axis, numbers.map((r) => [-r, height <= 12 ? `replica ${r}` : String(r)]))
  }
  put_data(heads, stages.map((row, s) => ({
    stage: s, y: 0.55 + (heads.data.height[0] ?? 0.6) / 2, height: heads.data.height[0] ?? 0.6, ops: "–",
    text: stages.length <= 10 ? `stage ${s}` : String(s), count: row.length})))
}
const label = (axis, pairs) => {
  put(axis.ticker, {ticks: pairs.map(([at]) => at)})
  put(axis, {major_label_overrides: new Map(pairs)})
}

const flash = (before, now) => {
  const moved = []
  now.forEach((row, s) => row.forEach((k, r) => { if (before?.[s]?.[r] !== k) moved.push([s, -r]) }))
  clearTimeout(state.timer)
  if (!before || !moved.length) return before ? 0 : null
  put(flashes, {data: {stage: moved.map(([s]) => s), y: moved.map(([, y]) => y)}})
  state.timer = setTimeout(() => put(flashes, {data: {stage: [], y: []}}), 450)
  return moved.length
}

// -- the map --------------------------------------------------------------------------------------------
const WORLD = 2 * Math.PI * 6378137, POINTS = 25
const draw = (rows, a, b, lift, facts) => {
  const {x, y} = sites.data
  const end = x[b] - WORLD * Math.round((x[b] - x[a]) / WORLD)
  const top_x = (x[a] + end) / 2, top_y = (y[a] + y[b]) / 2 + 2 * lift * Math.hypot(end - x[a], y[b] - y[a])
  const xs = [], ys = []
  for (let i = 0; i < POINTS; i++) {
    const t = i / (POINTS - 1), u = 1 - t
    xs.push(u * u * x[a] + 2 * t * u * top_x + t * t * end)
    ys.push(u * u * y[a] + 2 * t * u * top_y + t * t * y[b])
  }
  for (const shift of end == x[b] ? [0] : [0, x[b] - end])
    rows.push({...facts, xs: xs.map((v) => v + shift), ys})
}
const show_map = (stages) => {
  const site = devices.data.site, id = devices.data.id, lanes = new Map(), arc_rows = [], shared_rows = [], pairs = new Set()
  const at = sites.data.name.map(() => new Map())
  stages.forEach((row, s) => {
    const there = [...new Set(row.map((k) => site[k]))].sort((a, b) => a - b)
    row.forEach((k) => at[site[k]].set(s, [...at[site[k]].get(s) ?? [], id[k]]))
    there.forEach((a, i) => there.slice(i + 1).forEach((b) => pairs.add(`${a} ${b}`)))
    const next = stages[s + 1] ?? []
    for (let r = 0; r < (next.length ? Math.max(row.length, next.length) : 0); r++) {
      const k = row[r % row.length], l = next[r % next.length], a = site[k], b = site[l]
      if (a === b) continue
      const key = `${Math.min(a, b)} ${Math.max(a, b)}`, lane = lanes.get(key) ?? 0
      lanes.set(key, lane + 1)
      if (lane >= 8) continue
      draw(arc_rows, a, b, 0.10 + 0.035 * lane, {colour: route_colours[r % route_colours.length], width: 1.6, bytes: 0,
        route: `route ${r}, stage ${s} → ${s + 1}`, link: `${id[k]} → ${id[l]}`, traffic: "–", latency: "–",
        bandwidth: "–", start: id[k], end: id[l]})
    }
  })
  for (const pair of pairs) {
    const [a, b] = pair.split(" ").map(Number)
    draw(shared_rows, a, b, 0.04, {sites: `${sites.data.name[a]} ↔ ${sites.data.name[b]}`, traffic: "–", groups: "–"})
  }
  put_data(arcs, arc_rows)
  put_data(shared, shared_rows)
  put_data(badges, badge_rows(at))
}
const badge_rows = (at) => {
  const rows = [], n = names.data
  n.text.forEach((text, i) => {
    const place = sites.data.label.indexOf(text)
    if (place < 0) return
    const found = [...at[place].keys()].sort((a, b) => a - b), runs = []
    for (const s of found) {
      if (runs.length && runs.at(-1)[1] === s - 1) runs.at(-1)[1] = s
      else runs.push([s, s])
    }
    let texts = runs.flatMap(([a, b]) => a === b ? [`${a}`] : b === a + 1 ? [`${a}`, `${b}`] : [`${a}–${b}`])
    if (texts.length > 8) texts = [...texts.slice(0, 7), `+${texts.length - 7}`]
    const widths = texts.map((t) => 13 + 6 * t.length), whole = widths.reduce((a, b) => a + b, 0)
    let left = n.dx[i] - whole * {left: 0, center: 0.5, right: 1}[n.align[i]]
    texts.forEach((t, j) => {
      rows.push({x: n.x[i], y: n.y[i], text: t, dx: left + widths[j] / 2, dy: n.dy[i] + 16, align: "center",
        site: sites.data.name[place], devices: ""})
      left += widths[j]
    })
  })
  return rows
}

// -- the bars -------------------------------------------------------------------------------------------
const show_bars = (i) => {
  let from = i  // the last moment before whose terms are known
  while (from > 0 && !moments.data.terms[from].length) from--
  const known = new Map(moments.data.terms[from].map(([term, ...rest]) => [term, rest]))
  const was = (model) => state.saved[kept.findIndex(([one]) => one === model)]
  const old = was(bars).data, sums = was(totals).data
  const first = old.label[0], data = Object.fromEntries(Object.keys(old).map((name) => [name, [...old[name]]]))
  const whole = [...known.values()].reduce((sum, [value]) => sum + value, 0)
  if (!whole) return
  const others = sums.total.slice(1), most = Math.max(whole, ...others)
  let left = 0
  data.label.forEach((name, k) => {
    if (name !== first) return
    const [value, words] = known.get(data.term[k]) ?? [0, "0 s"], text = value >= 0.12 * most ? words : ""
    data.left[k] = left
    data.right[k] = left + value
    data.middle[k] = left + value / 2
    data.value[k] = words
    data.share[k] = `${(100 * value / whole).toFixed(0)}%`
    data.text_dark[k] = old.text_dark[k] || !old.text_light[k] ? text : ""
    data.text_light[k] = old.text_light[k] ? text : ""
    left += value
  })
  put(bars, {data})
  const all = [whole, ...others]
  const ratio = (k) => `${sums.text[k].split("  ")[0]}  (×${(all[k] / whole).toFixed(2)})`
  const texts = sums.text.map((_, k) => k ? ratio(k) : moments.data.step[from])
  put(totals, {data: {...sums, total: all, text: texts}})
  put(bars_x, {start: 0, end: most * was(bars_x).end / Math.max(...sums.total)})
}

// -- one moment -----------------------------------------------------------------------------------------
const show = (i) => {
  const m = moments.data, stages = stages_at(i), last = i === count() - 1
  if (last) restore()
  else {
    save()
    show_grid(stages)
    show_map(stages)
    show_bars(i)
  }
  const moved = flash(state.seen, stages)
  state.seen = stages
  put(mark, {data: last ? {x: [], y: []} : {x: [m.seconds[i]], y: [m.value[i]]}})
  say(m.text[i] + (moved === null ? "" : `, ${moved} cells changed`))
  state.shown++
}
