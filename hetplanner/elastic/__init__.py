"""Elastic training (SWARM) as state machines without I/O: events in, actions out, time passed in.

`protocol` is what they tell each other; `coordinator` and `peer` are the machines; `rebalancing` moves peers;
`forecast` plays preemption traces; `simulation` runs the real machines on simulated hosts. Processes around them are
in `hetplanner.swarm`.
"""
