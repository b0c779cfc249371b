"""Data only: Problem, Plan, Estimate, Action, Span, Trace. Begin with `model`.

`files` reads and writes them; `elastic` is the plan of a swarm; `reducers` are programs of transfers.
"""
