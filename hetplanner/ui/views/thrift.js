// What Bokeh computes again and again on a page of many figures, and what this page can do without.
//
// A style sheet that is written makes the browser compute styles anew at the next question for a size or a colour, and
// Bokeh asks hundreds of times per layout, between writes: with all pages of the planner half of an answer's time.
// Where Bokeh is made otherwise than expected, the page stays as it is, is slower and says so on the console.
(() => {
  const known = (module, name, method) => {
    const {prototype} = Bokeh.require(module)[name]
    if (typeof prototype[method] !== "function") throw new Error(`${name} has no ${method}`)
    return prototype
  }
  let sheet, visual, session, view
  try {
    sheet = known("core/dom", "InlineStyleSheet", "_update")
    visual = known("core/visuals/visual", "VisualProperties", "_get_css_value")
    session = known("client/session", "ClientSession", "_document_changed")
    view = known("models/layouts/layout_dom", "LayoutDOMView", "_after_resize")
  } catch (error) {
    console.error(`Bokeh ${Bokeh.version} is not the one that this page knows how to speed up: ${error}`)
    return
  }

  // Sheets are written when their text has changed; one that is cleared to be filled again is written once.
  Object.defineProperty(sheet, "css", {configurable: true, get() { return this.due ?? this.el.textContent }})
  sheet._update = function (css) {
    this.due = null
    this.written ??= this.el.textContent
    if (css === this.written) return
    this.written = css
    this.el.textContent = css
  }
  sheet.clear = function () {
    this.due = ""
    queueMicrotask(() => { if (this.due === "") this._update("") })
  }

  // No style sheet here sets `--bk-` variables, for which every line, fill and text asks at every paint.
  visual._get_css_value = () => ""

  // Tables tell the server of their style sheets at a change of theme, and it walks all models of the page for each: a
  // second. It knows them.
  const document_changed = session._document_changed
  session._document_changed = function (event) {
    if (event.attr !== "stylesheets") document_changed.call(this, event)
  }

  // What grows in height alone lays out nothing but, if it is a figure, itself: all else takes its height from its parts.
  const after_resize = view._after_resize
  view._after_resize = function () {
    const {width} = this.bbox
    const is_as_wide = this.laid_out_width === width
    this.laid_out_width = width
    if (is_as_wide && this._was_built && this._layout_computed && this.frame == null) return
    after_resize.call(this)
  }
})()
