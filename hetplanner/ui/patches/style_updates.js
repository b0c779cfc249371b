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
  let sheet, visual, session, view, index
  try {
    sheet = known("core/dom", "InlineStyleSheet", "_update")
    visual = known("core/visuals/visual", "VisualProperties", "_get_css_value")
    session = known("client/session", "ClientSession", "_document_changed")
    view = known("models/layouts/layout_dom", "LayoutDOMView", "_after_resize")
    index = known("core/view_manager", "ViewManager", "find_one_by_id")
    known("models/layouts/layout_dom", "LayoutDOMView", "_update_stylesheets")
    known("models/layouts/layout_dom", "LayoutDOMView", "invalidate_layout")
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

  // Tables tell the server of their style sheets at a change of theme, and widgets of the theme; it walks all models of
  // the page for each of the tables, a second. It knows them, and the page tells it of the theme.
  const document_changed = session._document_changed
  session._document_changed = function (event) {
    if (event.attr === "stylesheets") return
    if (event.attr === "dark_theme" && !this.document.roots().some(({data}) => data === event.model)) return
    document_changed.call(this, event)
  }

  // A change of theme asks for the view of every tool by its id; each question walked all views of the page. Those of
  // one task walk once; what is not found might have come in the meantime.
  const find_one_by_id = index.find_one_by_id
  let found = null
  index.find_one_by_id = function (id) {
    if (found === null) {
      found = new Map([...this.all_views()].reverse().map(each => [each.model.id, each]))  // the first of an id wins
      queueMicrotask(() => { found = null })
    }
    return found.get(id) ?? find_one_by_id.call(this, id)
  }

  // What grows in height alone lays out nothing but, if it is a figure, itself: all else takes its height from its parts.
  // Unless a figure below is of another width than it was laid out for: its own change of size was taken by its parents.
  const after_resize = view._after_resize
  const is_late = each => each.frame == null ? each.layoutable_views.some(is_late)
    : each.is_displayed && each.layout != null && each.layout.bbox.width !== each.bbox.width
  view._after_resize = function () {
    const {width} = this.bbox
    const is_as_wide = this.laid_out_width === width
    this.laid_out_width = width
    if (is_as_wide && this._was_built && this._layout_computed && this.frame == null && !is_late(this)) return
    after_resize.call(this)
  }

  // Nothing is laid out again for another style sheet alone: those of the themes differ in colours.
  const {_update_stylesheets, invalidate_layout} = view
  view._update_stylesheets = function () {
    _update_stylesheets.call(this)
    this.is_restyled = true
    queueMicrotask(() => { this.is_restyled = false })  // the layout is asked for in the same task
  }
  view.invalidate_layout = function () {
    if (!this.is_restyled) invalidate_layout.call(this)
  }
})()
