"""Reducers: how the members of a group add up their gradients, as data.

A reducer is a *program*: transfers in rounds. In every round a member first sends all of its transfers of the round
(sends wait for no member), then takes those addressed to it, in program order. What is sent in a round depends only on
what was taken in earlier ones, so programs cannot deadlock, and additions happen in one fixed order. The simulator
times exactly these transfers and the runtime performs exactly these.

To add a reducer: its name in `names.py`, a file with its class beside the others, a line in `registry.py`, and how
its bound reads in `hetplanner.cost.bounds.lower_bounds`; the conformance tests then run over it.
"""
