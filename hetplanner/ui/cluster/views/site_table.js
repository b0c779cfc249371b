// A square table of text fields: row from, column to. Python checks what is typed; every text is set as text, never as HTML.
export function render({ model, el }) {
  const table = document.createElement("table")
  const box = document.createElement("div")
  box.className = "box"
  box.append(table)
  let fields = []
  let names = null

  const at = (row, column) => fields[row]?.[column]

  function build() {
    names = model.content.names
    fields = []
    table.replaceChildren()
    const head = table.createTHead().insertRow()
    head.append(cell("th", "from \\ to"), ...names.map((name) => cell("th", name)))
    const body = table.createTBody()
    names.forEach((name, row) => {
      const line = body.insertRow()
      line.append(cell("th", name))
      fields.push(names.map((_, column) => {
        const input = document.createElement("input")
        input.setAttribute("aria-label", `${model.label} ${names[row]} → ${names[column]}`)
        input.spellcheck = false
        listen(input, row, column)
        line.insertCell().append(input)
        return input
      }))
    })
  }

  function cell(tag, text) {
    const one = document.createElement(tag)
    one.textContent = one.title = text
    return one
  }

  function listen(input, row, column) {
    input.addEventListener("focus", () => {
      input.select()
      model.send_msg({ choose: [row, column] })
    })
    input.addEventListener("change", () => write(row, column, [[input.value]]))
    input.addEventListener("paste", (event) => {
      const text = event.clipboardData.getData("text/plain").replace(/\r/g, "").replace(/\n+$/, "")
      if (/[\t\n]/.test(text)) {
        event.preventDefault()
        write(row, column, text.split("\n").map((line) => line.split("\t")))
      }
    })
    input.addEventListener("keydown", (event) => {
      const step = { Enter: 1, ArrowDown: 1, ArrowUp: -1 }[event.key]
      if (step) {
        event.preventDefault()
        const next = at(row + step, column)
        if (next) next.focus()
        else input.blur()
      } else if (event.key === "Escape") {
        input.value = model.content.rows[row][column][0]
        input.blur()
      }
    })
  }

  function write(row, column, texts) {
    model.send_msg({ write: [row, column], texts })
  }

  function show() {
    if (JSON.stringify(names) !== JSON.stringify(model.content.names)) build()
    const focused = el.getRootNode().activeElement
    model.content.rows.forEach((line, row) => line.forEach(([text, known, title, why], column) => {
      const input = at(row, column)
      const typing = input === focused && input.value !== input.dataset.shown
      if (!typing) input.value = text
      input.dataset.shown = text
      input.title = why ? `${why}\n${title}` : title
      input.setAttribute("aria-invalid", why ? "true" : "false")
      const chosen = model.content.chosen
      input.className = [known || "none", why && "bad", row === column && "inside",
        chosen && chosen[0] === row && chosen[1] === column && "chosen"].filter(Boolean).join(" ")
    }))
  }

  model.on("content", show)
  show()
  return box
}
