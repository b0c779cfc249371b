"""A row of plain HTML controls as one light component: twenty Material widgets would take a second to appear.

Items are dictionaries with `name` and `kind` (button, select, text, number, check, note). Where they apply, they also
have `label`, `title` (shown on hovering), `value`, `options`, `hint`, `error` (shown beside the field), `disabled`,
`pressed`, `primary`, `width`, and `focus` (where it grows, the cursor moves into the field). All text is set as text,
never as markup. A pressed button, a changed select or check and Enter in a field call `act(name, values)` with the
values of all fields.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import panel as pn
import param

Item = dict[str, Any]
Act = Callable[[str, dict[str, Any]], object]
MAX_TEXT = 4000

_ESM = """
export function render({model}) {
  const root = document.createElement('div')
  root.className = 'controls'
  const made = new Map()
  let focused = 0
  const values = () => Object.fromEntries([...made].filter(([, m]) => m.value).map(([n, m]) => [n, m.value()]))
  const send = (name) => model.send_msg({name, values: values()})
  const tag = (name, cls, ...children) => {
    const node = document.createElement(name)
    if (cls) node.className = cls
    node.append(...children)
    return node
  }
  const button = (item) => {
    const node = tag('button')
    node.type = 'button'
    node.addEventListener('click', () => send(item.name))
    const update = (now) => {
      node.textContent = now.label
      node.className = ['primary', 'pressed'].filter((c) => now[c]).join(' ')
      node.title = now.title ?? ''
      node.disabled = !!now.disabled
      if ('pressed' in now) node.setAttribute('aria-pressed', now.pressed ? 'true' : 'false')
    }
    return {node, update}
  }
  const note = () => {
    const node = tag('div', 'note')
    const update = (now) => {
      node.textContent = now.label
      node.hidden = !now.label
      node.className = now.wrong ? 'note refused' : 'note'
    }
    return {node, update}
  }
  const check = (item) => {
    const box = tag('input'), text = tag('span'), node = tag('label', 'check', box, text)
    box.type = 'checkbox'
    box.addEventListener('change', () => send(item.name))
    const update = (now) => { text.textContent = now.label; node.title = now.title ?? ''; box.checked = !!now.value }
    return {node, update, value: () => box.checked}
  }
  const field = (item) => {
    const input = tag(item.kind == 'select' ? 'select' : 'input'), name = tag('span', 'name')
    const error = tag('span', 'refused'), hint = tag('span', 'hint')
    const node = tag('label', 'field', name, input, error, hint)
    let list = null, options = '', shown = undefined
    if (item.kind == 'select') input.addEventListener('change', () => send(item.name))
    else {
      input.autocomplete = 'off'
      input.spellcheck = false
      input.inputMode = item.kind == 'number' ? 'decimal' : 'text'
      input.addEventListener('keydown', (e) => { if (e.key == 'Enter') send(item.name) })
    }
    if (item.kind == 'text' && item.options) {
      list = tag('datalist')
      list.id = 'list-' + item.name
      input.setAttribute('list', list.id)
      node.append(list)
    }
    const update = (now) => {
      name.textContent = now.label
      input.setAttribute('aria-label', now.label || now.title || now.name)  // not the hint with it
      node.title = now.title ?? ''
      node.style.width = now.width ? `${now.width}px` : ''
      const text = JSON.stringify(now.options ?? [])
      if (text != options) {
        options = text
        const target = list ?? input
        target.replaceChildren(...(now.options ?? []).map((value) => {
          const option = tag('option')
          option.value = value
          if (!list) option.textContent = value
          return option
        }))
        if (!list) shown = undefined
      }
      // What a person is typing stays, unless the server has another value than it had.
      if (now.value !== shown) { shown = now.value; input.value = now.value ?? '' }
      if ((now.focus ?? 0) > focused) {
        focused = now.focus
        setTimeout(() => { input.focus({preventScroll: true}); input.select() })
      }
      input.disabled = !!now.disabled
      input.classList.toggle('wrong', !!now.error)
      input.setAttribute('aria-invalid', now.error ? 'true' : 'false')
      error.textContent = now.error ?? ''
      hint.textContent = now.hint ?? ''
    }
    return {node, update, value: () => input.value}
  }
  const makers = {button, note, check}
  const draw = () => {
    const items = model.items, names = new Set(items.map((i) => i.name))
    for (const [name, m] of made) if (!names.has(name)) { m.node.remove(); made.delete(name) }
    items.forEach((item, i) => {
      let m = made.get(item.name)
      if (!m) { m = (makers[item.kind] ?? field)(item); made.set(item.name, m) }
      if (root.children[i] !== m.node) root.insertBefore(m.node, root.children[i] ?? null)
      m.update(item)
    })
  }
  model.on('items', draw)
  draw()
  return root
}
"""

_CSS = """
:host { color: var(--panel-on-surface-color); font-family: Roboto, Helvetica, Arial, sans-serif; }
.controls { display: flex; flex-wrap: wrap; gap: 6px 8px; align-items: flex-start; font-size: 13px; }
.controls > [hidden] { display: none; }
button, input, select { font: inherit; color: inherit; box-sizing: border-box; height: 32px; border-radius: 4px;
  border: 1px solid color-mix(in srgb, var(--panel-on-surface-color) 32%, transparent); background: transparent; }
button { padding: 0 11px; cursor: pointer; font-weight: 500; }
button:hover:not(:disabled) { background: color-mix(in srgb, var(--panel-primary-color) 12%, transparent); }
button:disabled { opacity: .4; cursor: default; }
button.primary { border-color: var(--panel-primary-color); color: var(--panel-primary-color); }
button.pressed { background: var(--panel-primary-color); border-color: var(--panel-primary-color);
  color: var(--panel-on-primary-color); }
button:focus-visible, input:focus-visible, select:focus-visible { outline: 2px solid var(--panel-primary-color);
  outline-offset: 1px; }
input, select { width: 100%; padding: 0 8px; }
select option { color: #20242a; background: #fff; }
.field { display: flex; flex-direction: column; gap: 2px; min-width: 0; }
.name { font-size: 11.5px; opacity: .75; }
.hint, .note { font-size: 12px; opacity: .75; line-height: 1.4; overflow-wrap: anywhere; }
.name:empty, .hint:empty, .refused:empty { display: none; }
.note { flex-basis: 100%; }
.refused, .note.refused { font-size: 12px; color: #e5484d; opacity: 1; line-height: 1.35; overflow-wrap: anywhere; }
input.wrong { border-color: #e5484d; }
.controls > button, .check { align-self: flex-end; }
.check { display: flex; gap: 6px; align-items: center; height: 32px; }
.check input { width: 16px; height: 16px; accent-color: var(--panel-primary-color); }
"""


class Controls(pn.custom.JSComponent):
    """The row. `put(items)` replaces what it holds; only what differs is redrawn, typed text stays."""

    items = param.List(default=[])

    _esm = _ESM
    _stylesheets: ClassVar[list[str]] = [_CSS]

    def __init__(self, act: Act, items: list[Item] | None = None, **params: Any) -> None:
        super().__init__(**({"items": items or [], "sizing_mode": "stretch_width", "margin": (4, 12)} | params))
        self._act = act

    def put(self, items: list[Item]) -> None:
        """New items; equal ones are not sent again."""
        if items != self.items:
            self.items = items

    def _handle_msg(self, data: Any) -> None:
        """What the page sent is data: an unknown name or a value of another kind is dropped."""
        if not isinstance(data, dict) or not isinstance(data.get("values"), dict):
            return
        name = data.get("name")
        if not any(item["name"] == name and not item.get("disabled") for item in self.items):
            return
        fields = {item["name"] for item in self.items}
        values = {
            key: value[:MAX_TEXT] if isinstance(value, str) else value
            for key, value in data["values"].items()
            if key in fields and isinstance(value, str | bool)
        }
        with pn.io.hold():
            self._act(str(name), values)


def button(name: str, label: str, title: str = "", **more: Any) -> Item:
    """A button; `pressed=` makes it a toggle, `primary=True` the one that is meant."""
    return {"kind": "button", "name": name, "label": label, "title": title} | more


def field(kind: str, name: str, label: str, value: Any, **more: Any) -> Item:
    """A select, text, number or check."""
    return {"kind": kind, "name": name, "label": label, "value": value} | more


def note(name: str, text: str, *, wrong: bool = False) -> Item:
    """A line of small text over the whole width; '' hides it. `wrong` says that something was refused."""
    return {"kind": "note", "name": name, "label": text} | ({"wrong": True} if wrong else {})
