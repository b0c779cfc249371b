// A colour bar may change between being made and being laid out.
//
// Bokeh's marks the layout of one for renewal when its colours change, also where there is none yet: an error that stops
// the whole message, on a page whose theme is changed while its lower half arrives.
(() => {
  let bar
  try {
    bar = Bokeh.require("models/annotations/base_color_bar").BaseColorBarView.prototype
    if (typeof bar.lazy_initialize !== "function") throw new Error("it has no lazy_initialize")
  } catch (error) {
    console.error(`Bokeh ${Bokeh.version} has another colour bar than this page knows how to mend: ${error}`)
    return
  }
  const lazy_initialize = bar.lazy_initialize
  bar.lazy_initialize = async function () {
    await lazy_initialize.call(this)
    const {parent} = this._axis_view
    const request_layout = parent.request_layout
    parent.request_layout = () => { if (this.layout != null) request_layout.call(parent) }  // else the first is to come
  }
})()
