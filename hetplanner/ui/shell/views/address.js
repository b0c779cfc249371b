// The page's address: written as the page changes, told of when a person goes back or forth. Remembers the theme.

const THEME = "hetplanner-theme"

function stored() {
  try { return localStorage.getItem(THEME) } catch { return null }  // a browser may forbid it
}

function store(dark) {
  try { localStorage.setItem(THEME, dark ? "dark" : "light") } catch { }
}

export function render({model}) {
  let known = JSON.parse(model.entry).places
  const write = () => {
    const {search, places} = JSON.parse(model.entry)
    const push = places > known
    known = places
    if (search === location.search) { return }
    const address = location.pathname + search + location.hash
    push ? history.pushState(null, "", address) : history.replaceState(null, "", address)
  }
  model.on("entry", write)
  window.addEventListener("popstate", () => model.send_msg({search: location.search}))
  model.on("title", () => { document.title = model.title })

  const dark = stored() === null ? matchMedia("(prefers-color-scheme: dark)").matches : stored() === "dark"
  const tell = () => {  // nothing is heard of before the page is whole
    Bokeh.documents[0]?.is_idle ? model.send_msg({dark}) : setTimeout(tell, 100)
  }
  if (dark !== model.dark) { tell() }
  model.on("dark", () => { if (model.dark !== dark || stored() !== null) { store(model.dark) } })
  return document.createElement("span")
}
