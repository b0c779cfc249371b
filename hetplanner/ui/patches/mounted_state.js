// A widget that is drawn by React catches up with what changed between its first drawing and its mounting.
//
// Panel's `useState` reads a property while React draws and listens for changes once it has mounted: what the server
// says in between is never shown, and a button stays disabled for good.
(() => {
  const esm = Bokeh.Models.get("panel.models.esm.ReactComponent")?.prototype
  if (typeof esm?.watch !== "function") {
    console.error("Panel's components have no `watch`: a widget may miss what changes while it is being mounted")
    return
  }
  const watch = esm.watch
  esm.watch = function (view, name, callback, force = false) {
    watch.call(this, view, name, callback, force)
    if (force && !this.events.includes(name)) callback()  // only `useState` asks by force; an unchanged value costs nothing
  }
})()
