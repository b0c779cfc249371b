// Draws a search improvement by improvement: map, grid, cost bars, and a mark on the curve. All of it stands in the
// page. Names become text, never markup.
(() => {
const root = document.currentScript.closest(".film")
const film = JSON.parse(root.querySelector("script[type='application/json']").textContent)
const part = (name) => root.querySelector(`[data-part="${name}"]`)
const [play, slider, words] = ["play", "slider", "words"].map(part)
const space = part("cells").namespaceURI
const node = (kind, attributes, text) => {
  const made = document.createElementNS(space, kind)
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value)
  if (text !== undefined) made.textContent = text
  return made
}
const titled = (one, text) => { one.append(node("title", {}, text)); return one }
const [WIDTH, HEIGHT] = film.size, [BAR_LEFT, BAR_RIGHT, BAR_Y, BAR_HEIGHT] = film.bar_box, TEXT_Y = BAR_Y + BAR_HEIGHT / 2 + 4
const LEFT = 20, TOP = 20
const last = film.stages.length - 1

// -- the grid -------------------------------------------------------------------------------------------
const short = (text, limit) => {
  if (text.length <= limit) return text
  const tail = Math.floor((limit - 1) / 2)
  return limit > 1 ? text.slice(0, limit - 1 - tail) + "…" + (tail ? text.slice(-tail) : "") : "…"
}
const cell = (k, s, r, w, h, is_moved) => {
  const site = film.sites[film.site[k]], x = LEFT + s * w, y = TOP + r * h, gap = Math.min(1, w / 10, h / 10)
  const chars = Math.floor((w - 6) / 6.6), lines = chars > 4 ? Math.min(2, Math.floor((h - 3) / 13)) : 0
  const group = node("g", {class: is_moved ? "cell moved" : "cell"})
  const inset = is_moved ? gap + Math.min(1.5, w / 8, h / 8) : gap
  group.append(node("rect", {x: x + inset, y: y + inset, width: Math.max(w - 2 * inset, 0.5),
    height: Math.max(h - 2 * inset, 0.5), fill: site.colour}))
  const kind = film.kinds[film.kind[k]], said = [film.ids[k], kind].slice(0, lines)
  said.forEach((text, i) => group.append(node("text", {x: x + w / 2,
    y: y + h / 2 + 13 * (i - (lines - 1) / 2) + 4, fill: site.ink}, short(text, chars))))
  return titled(group, `${film.ids[k]} (${kind}), ${site.name}: stage ${s}, replica ${r}`)
}
const show_grid = (stages, before) => {
  const most = Math.max(...stages.map((row) => row.length)), w = (WIDTH - LEFT - 2) / stages.length
  const h = (HEIGHT - TOP - 2) / most, still = [], moved = [], heads = []
  stages.forEach((row, s) => {
    heads.push([LEFT + (s + 0.5) * w, 13, w >= 52 ? `stage ${s}` : w >= 14 || s % 5 === 0 ? String(s) : ""])
    row.forEach((k, r) => {
      const is_moved = before !== null && before[s]?.[r] !== k
      ;(is_moved ? moved : still).push(cell(k, s, r, w, h, is_moved))
    })
  })
  for (let r = 0; r < most; r++)
    if (h >= 12 || r % Math.ceil(12 / h) === 0) heads.push([LEFT / 2, TOP + (r + 0.5) * h + 4, String(r)])
  part("heads").replaceChildren(...heads.map(([x, y, text]) => node("text", {x, y}, text)))
  part("cells").replaceChildren(...still, ...moved)
  return moved.length
}

// -- the map --------------------------------------------------------------------------------------------
const arc = (a, b, lift, facts) => {
  const one = film.sites[a], two = film.sites[b], found = []
  const end = two.x - film.world * Math.round((two.x - one.x) / film.world)  // the shorter way, maybe over the edge
  const x = (one.x + end) / 2, y = (one.y + two.y) / 2 - 2 * lift * Math.hypot(end - one.x, two.y - one.y)
  for (const shift of end === two.x ? [0] : [0, two.x - end])
    found.push(node("path", {...facts, d: `M${one.x + shift} ${one.y}Q${x + shift} ${y} ${end + shift} ${two.y}`}))
  return found
}
const show_map = (stages) => {
  const lanes = new Map(), drawn = [], pairs = new Set(), at = film.sites.map(() => new Set())
  stages.forEach((row, s) => {
    const there = [...new Set(row.map((k) => film.site[k]))].sort((a, b) => a - b)
    there.forEach((a, i) => { at[a].add(s); there.slice(i + 1).forEach((b) => pairs.add(`${a} ${b}`)) })
    const next = stages[s + 1] ?? []
    for (let r = 0; r < (next.length ? Math.max(row.length, next.length) : 0); r++) {
      const k = row[r % row.length], l = next[r % next.length], a = film.site[k], b = film.site[l]
      if (a === b) continue
      const key = `${Math.min(a, b)} ${Math.max(a, b)}`, lane = lanes.get(key) ?? 0
      lanes.set(key, lane + 1)
      if (lane < 8) drawn.push(...arc(a, b, 0.1 + 0.035 * lane, {class: "arc", stroke: film.routes[r % film.routes.length]})
        .map((one) => titled(one, `route ${r}, stage ${s} → ${s + 1}: ${film.ids[k]} → ${film.ids[l]}`)))
    }
  })
  const shared = (pairs.size > film.most_lines ? [] : [...pairs]).flatMap((pair) => arc(...pair.split(" ").map(Number), 0.04, {class: "shared"}))
  part("arcs").replaceChildren(...shared, ...(drawn.length > film.most_lines ? [] : drawn))
  at.forEach((here, i) => { if (labels[i]) labels[i].textContent = stages_text([...here].sort((a, b) => a - b)) })
}
const stages_text = (stages) => {
  const runs = []
  for (const s of stages) {
    if (runs.length && runs.at(-1)[1] === s - 1) runs.at(-1)[1] = s
    else runs.push([s, s])
  }
  const said = runs.flatMap(([a, b]) => a === b ? [a] : b === a + 1 ? [a, b] : [`${a}–${b}`])
  let text = "", shown = 0
  while (shown < said.length && (!shown || `${text}${said[shown]}`.length <= 13)) text += `${shown ? ", " : ""}${said[shown++]}`
  const more = shown < said.length ? ` +${said.length - shown}` : ""
  return stages.length ? `stage${stages.length > 1 ? "s" : ""} ${text}${more}` : ""
}
const labels = film.sites.map((site) => {
  part("sites").append(titled(node("circle", {cx: site.x, cy: site.y, r: site.size / 2, fill: site.colour}), site.name))
  if (site.label === undefined) return null
  const place = {x: site.x + site.dx, "text-anchor": site.anchor}
  part("names").append(node("text", {...place, y: site.y + site.dy}, site.label))
  const line = node("text", {...place, y: site.y + site.dy + 14, class: "small"})
  part("names").append(line)
  return line
})

// -- the bars and the curve -----------------------------------------------------------------------------
const show_bars = (values, said, total) => {
  const to_x = (v) => BAR_LEFT + Math.min(v / film.scale, 1) * (BAR_RIGHT - BAR_LEFT), drawn = []
  let left = 0
  values.forEach((v, t) => {
    const term = film.terms[t], x = to_x(left), width = to_x(left + v) - x
    if (width > 0) drawn.push(titled(node("rect", {x, y: BAR_Y, width, height: BAR_HEIGHT, fill: term.colour}), `${term.label}: ${said[t]}`))
    if (width >= film.number) drawn.push(node("text", {x: x + width / 2, y: TEXT_Y, class: "inside", fill: term.ink}, said[t]))
    left += v
  })
  drawn.push(node("text", {x: to_x(left) + 6, y: TEXT_Y, class: "total"}, left ? total + (left > film.scale ? " →" : "") : "not known"))
  part("bar").replaceChildren(...drawn)
}
const show_mark = ([x, y]) => {
  for (const [name, value] of [["x1", x], ["x2", x]]) part("line").setAttribute(name, value)
  part("dot").setAttribute("cx", x)
  part("dot").setAttribute("cy", y)
}

// -- one moment, and all of them --------------------------------------------------------------------------
const show = (i) => {
  const moved = show_grid(film.stages[i], i ? film.stages[i - 1] : null)
  show_map(film.stages[i])
  show_bars(film.bars[i], film.said[i], film.totals[i])
  show_mark(film.marks[i])
  const said = film.texts[i] + (i ? `, ${moved} cell${moved === 1 ? "" : "s"} changed` : "")
  words.textContent = said
  slider.setAttribute("aria-valuetext", said)
  slider.value = i
  root.dataset.moment = i
}
let playing = 0
const stop = () => {
  cancelAnimationFrame(playing)
  playing = 0
  play.textContent = "Play"
}
const start = () => {
  const every = Math.max(film.pace[0], Math.min(film.pace[1], film.pace[2] / film.stages.length))
  let at = +slider.value >= last ? 0 : +slider.value, due = performance.now() + every
  show(at)
  play.textContent = "Pause"
  const step = (now) => {
    if (now >= due) {
      show(++at)
      due = Math.max(due + every, now)  // what a busy browser is late with is not made up by leaping
    }
    if (at >= last) stop()
    else playing = requestAnimationFrame(step)
  }
  playing = requestAnimationFrame(step)
}
play.addEventListener("click", () => playing ? stop() : start())
slider.addEventListener("input", () => { stop(); show(+slider.value) })
show(last)
})()
