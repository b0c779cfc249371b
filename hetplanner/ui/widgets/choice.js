// One of several names: as tabs, or as buttons beside each other. Arrow keys, Home and End move among tabs.

export function render({model}) {
  const list = document.createElement("div")
  list.setAttribute("role", model.look === "tabs" ? "tablist" : "group")
  const buttons = new Map()

  const mark = name => {
    for (const [each, button] of buttons) {
      button.setAttribute(model.look === "tabs" ? "aria-selected" : "aria-pressed", each === name)
      if (model.look === "tabs") button.tabIndex = each === name ? 0 : -1
    }
  }

  const tell_busy = () => {
    const busy = JSON.parse(model.busy)
    for (const [name, button] of buttons) {
      button.classList.toggle("busy", name in busy)
      if (name in busy) button.title = busy[name]
      else button.removeAttribute("title")
    }
  }

  const choose = name => {
    mark(name)
    model.send_msg(name)
  }

  const make = ({name, label}) => {
    const button = document.createElement("button")
    button.type = "button"
    button.textContent = label
    if (model.look === "tabs") button.setAttribute("role", "tab")
    button.onclick = () => choose(name)
    buttons.set(name, button)
    return button
  }

  list.onkeydown = event => {
    const names = [...buttons.keys()]
    const at = names.findIndex(name => buttons.get(name) === event.target)
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1}[event.key]
    if (model.look !== "tabs" || at < 0 || to === undefined) return
    const name = names.at(to % names.length)
    event.preventDefault()
    buttons.get(name).focus()
    choose(name)
  }

  list.append(...JSON.parse(model.options).map(make))
  list.className = model.look
  model.on("value", () => mark(model.value))
  mark(model.value)
  model.on("busy", tell_busy)
  tell_busy()
  return list
}
