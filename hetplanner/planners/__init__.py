"""Planners: a problem, a seed and a budget in; a plan, and events on the way, out.

Begin with `interface` (what every planner does), `base` (what they share) and `registry` (their names). The folders:
`search` is the evolutionary search; `step_time` and `dtfm` are its two objectives; `exhaustive` proves small problems;
`baselines` are what others would do; `network` reads structure off the links; `choices` picks codec, reducer and local
steps of a layout; `variants` are plans made from a plan. No torch here; kernels import numba on first use.
"""
