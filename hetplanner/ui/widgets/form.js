// Draws groups of settings from plain data and sends what a person changes. All text goes in as text, never as HTML.

function element(tag, className, text) {
  const made = document.createElement(tag)
  if (className) made.className = className
  if (text) made.textContent = text
  return made
}

function control(field, id, send) {
  if (field.kind === "choice") {
    const select = element("select")
    for (const [value, label] of field.options) select.append(new Option(label, value))
    select.onchange = () => send(select.value)
    return {node: select, set: value => { select.value = value }}
  }
  if (field.kind === "flag") {
    const box = element("input")
    box.type = "checkbox"
    box.onchange = () => send(box.checked)
    return {node: box, set: value => { box.checked = value }}
  }
  if (field.kind === "many") return chips(field, send)
  const input = element("input")
  const typed = field.kind === "whole" || field.kind === "number"
  input.type = typed ? "number" : "text"
  if (typed) input.step = field.kind === "whole" ? "1" : "any"
  input.placeholder = field.empty
  input.spellcheck = false
  input.autocomplete = "off"
  let typing = false, latest = ""
  input.oninput = () => { typing = true }
  input.onchange = () => { typing = false; send(input.value) }
  input.onblur = () => {  // what was typed is what stood there: no change comes
    if (typing) input.value = latest
    typing = false
  }
  // An answer to another field must not take away what is being typed here.
  const set = value => {
    latest = value
    if (!typing && input.value !== value) input.value = value
  }
  return {node: input, set}
}

function chips(field, send) {
  const node = element("div", "chips")
  node.setAttribute("role", "group")
  node.setAttribute("aria-label", field.label)
  const boxes = field.options.map(([value, label]) => {
    const chip = element("label", "chip")
    const box = element("input")
    box.type = "checkbox"
    box.value = value
    box.onchange = () => send(boxes.filter(b => b.checked).map(b => b.value))
    chip.append(box, element("span", "", label))
    node.append(chip)
    return box
  })
  return {node, set: values => boxes.forEach(box => { box.checked = values.includes(box.value) })}
}

function row(field, id, send) {
  const node = element("div", `field ${field.kind}${field.wide ? " wide" : ""}`)
  const made = control(field, id, send)
  const words = element("div", "words")
  const label = element(field.kind === "many" ? "div" : "label", "label", field.label)
  const hint = element("div", "hint", field.hint)
  const error = element("div", "law")
  error.setAttribute("role", "alert")
  made.node.id = id
  if (field.kind !== "many") {
    label.htmlFor = id
    made.node.dataset.name = field.name
  }
  if (!field.label) made.node.setAttribute("aria-label", field.hint)
  node.title = field.hint
  words.append(label, hint)
  node.append(words, made.node, error)
  return {node, set: made.set, control: made.node, error}
}

export function render({model, el}) {
  const root = element("div", "form")
  const rest = element("div", "law rest")
  rest.setAttribute("role", "alert")
  const opened = new Set()
  let rows = {}, notes = {}, groups = []

  function draw() {
    const focused = root.getRootNode().activeElement?.dataset?.name
    rows = {}; notes = {}; groups = []
    root.replaceChildren()
    for (const group of JSON.parse(model.groups)) {
      const body = element("div", group.title ? "list" : "grid")
      for (const field of group.fields) {
        const id = `setting-${field.name.replaceAll(".", "-")}`
        rows[field.name] = row(field, id, value => model.send_msg({name: field.name, value}))
        body.append(rows[field.name].node)
      }
      if (!group.title) { root.append(body); continue }
      const details = element("details")
      const summary = element("summary")
      notes[group.title] = element("span", "note")
      summary.append(element("span", "title", group.title), notes[group.title])
      details.append(summary, body)
      details.open = opened.has(group.title)
      details.ontoggle = () => details.open ? opened.add(group.title) : opened.delete(group.title)
      groups.push({details, names: group.fields.map(f => f.name)})
      root.append(details)
    }
    root.append(rest)
    show()
    if (focused) rows[focused]?.control.focus()
  }

  function show() {
    const state = JSON.parse(model.state)
    for (const [name, made] of Object.entries(rows)) {
      if (name in state.values) made.set(state.values[name])
      const error = state.errors[name] || ""
      if (made.error.textContent !== error) made.error.textContent = error
      made.node.classList.toggle("wrong", Boolean(error))
      made.control.setAttribute("aria-invalid", String(Boolean(error)))
      made.control.disabled = state.disabled.includes(name)
    }
    rest.textContent = state.errors[""] || ""
    for (const [title, note] of Object.entries(notes)) {
      note.textContent = state.notes[title] || ""
      note.title = note.textContent
    }
    for (const {details, names} of groups)
      if (names.some(name => state.errors[name])) details.open = true
  }

  root.onkeydown = event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.target.blur()  // sends what is being typed first
      model.send_msg({search: true})
    }
  }
  model.on("groups", draw)
  model.on("state", show)
  draw()
  return root
}
