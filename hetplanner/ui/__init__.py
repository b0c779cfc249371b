"""The dashboard. Begin with `serve`, then `shell`.

A folder for each page (`cluster`, `settings`, `plan`, `simulate`, `run`, `export`) holds its view-models (`param`
objects without Panel) and its views; `shell` is around the pages, `widgets` are shared components, `patches` is what
the page changes in Bokeh and Panel. `jobs` does heavy work in other processes, `security` guards requests.
"""
