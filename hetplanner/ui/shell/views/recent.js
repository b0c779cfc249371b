// Lists of what to go back to; texts are set as text, never as markup. The browser remembers whether they are folded.

const FOLDED = "hetplanner-recent-folded"

function stored() {
  try { return localStorage.getItem(FOLDED) === "yes" } catch { return false }  // a browser may forbid it
}

function store(folded) {
  try { localStorage.setItem(FOLDED, folded ? "yes" : "no") } catch { }
}

function tag(name, className, ...children) {
  const node = document.createElement(name)
  node.className = className
  node.append(...children)
  return node
}

export function render({model}) {
  const mark = tag("span", "mark")
  const fold = tag("button", "fold", mark, "Recent")
  const lists = tag("div", "lists")
  fold.type = "button"
  lists.id = "recent-lists"
  mark.setAttribute("aria-hidden", "true")
  fold.setAttribute("aria-controls", lists.id)

  const row = (kind, {key, name, words, title}) => {
    const face = tag(key ? "button" : "div", key ? "entry" : "entry damaged", tag("span", "name", name), tag("span", "words", words))
    face.title = title
    if (key) {
      face.type = "button"
      face.onclick = () => model.send_msg({kind, key})
    }
    return tag("li", "", face)
  }
  const column = ({kind, title, empty, rows}) => {
    const heading = tag("div", "heading", title)
    heading.id = `recent-${kind}`
    const list = tag("ul", "", ...(rows.length ? rows.map((each) => row(kind, each)) : [tag("li", "empty", empty)]))
    list.setAttribute("aria-labelledby", heading.id)
    if (!rows.some(({key}) => key)) list.tabIndex = 0  // it may scroll, and nothing in it is reached by keys
    return tag("section", "", heading, list)
  }
  const show = (folded) => {
    lists.hidden = folded
    mark.textContent = folded ? "▸" : "▾"
    fold.setAttribute("aria-expanded", folded ? "false" : "true")
  }
  const draw = () => {
    lists.style.setProperty("--room", model.room)
    lists.replaceChildren(...model.columns.map(column))
  }
  fold.onclick = () => {
    show(!lists.hidden)
    store(lists.hidden)
  }
  model.on(["columns", "room"], draw)
  draw()
  show(stored())
  return tag("div", "recent", fold, lists)
}
