"""The cost model: from a plan to its estimate. Begin with `estimate`; formulas are in `closed_form`.

`bounds` are valid for every plan of a problem; `advice` says which change helps; `elastic` is the same for swarms.
"""
