// Plain buttons: some save a figure as the browser shows it, the others tell the server that they were pressed.

// Views are not in Bokeh's index where React components hold them, so their tree is walked.
function find(view, id, seen) {
  if (view == null || typeof view !== "object" || seen.has(view)) return null
  seen.add(view)
  if (view.model?.id === id) return view
  for (const child of [...(view.child_views ?? []), ...(view._child_views?.values?.() ?? [])]) {
    const found = find(child, id, seen)
    if (found != null) return found
  }
  return null
}

function figureView(id) {
  const seen = new Set()
  for (const root of Bokeh.index.roots ?? Object.values(Bokeh.index)) {
    const found = find(root, id, seen)
    if (found != null) return found
  }
  throw new Error("the figure is not on the page")
}

function save(blob, name) {
  const link = document.createElement("a")
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10000)
}

function paperOf(node) {
  return getComputedStyle(node).getPropertyValue("--panel-surface-color").trim() || "#ffffff"
}

// The card's paper is put behind the figure, which has none of its own.
async function picture(item, paper) {
  const layer = figureView(item.figure).export(item.kind)
  if (item.kind === "svg") {
    const text = await (await layer.to_blob()).text()
    return new Blob([text.replace(/<svg[^>]*>/, tag => `${tag}<rect width="100%" height="100%" fill="${paper}"/>`)], {type: "image/svg+xml"})
  }
  const canvas = document.createElement("canvas")
  canvas.width = layer.canvas.width
  canvas.height = layer.canvas.height
  const context = canvas.getContext("2d")
  context.fillStyle = paper
  context.fillRect(0, 0, canvas.width, canvas.height)
  context.drawImage(layer.canvas, 0, 0)
  return new Promise(resolve => canvas.toBlob(resolve))
}

export function render({model}) {
  const root = document.createElement("div")
  root.className = "tools"

  function press(item) {
    if (!item.figure) model.send_msg({press: item.name})
    else picture(item, paperOf(root)).then(blob => save(blob, `${item.name}.${item.kind}`))
  }

  function draw() {
    root.replaceChildren(...JSON.parse(model.items).map(item => {
      const button = document.createElement("button")
      button.type = "button"
      button.textContent = item.label
      button.title = item.title
      button.disabled = Boolean(item.disabled)
      button.onclick = () => press(item)
      return button
    }))
  }

  model.on("items", draw)
  model.on("msg:custom", file => save(new Blob([file.text], {type: file.kind}), file.name))
  draw()
  return root
}
