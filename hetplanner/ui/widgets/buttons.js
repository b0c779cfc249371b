// One button; texts are set as text, never as markup.

function icon(name) {
  const node = document.createElement("span")
  node.className = "icon"
  node.textContent = name
  node.setAttribute("aria-hidden", "true")
  return node
}

export function render({model}) {
  const button = document.createElement("button")
  button.type = "button"
  button.onclick = () => model.send_msg("press")
  const draw = () => {
    button.className = `${model.variant} in-${model.color}`  // a bare "error" has a look of Panel's own
    button.disabled = model.disabled
    button.replaceChildren(...[model.icon && icon(model.icon), model.label, model.end_icon && icon(model.end_icon)].filter(Boolean))
  }
  model.on(["label", "icon", "end_icon", "variant", "color", "disabled"], draw)
  draw()
  return button
}
