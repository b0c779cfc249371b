"""A swarm over preemption traces, without processes: what it would train. Begin with `forecast`."""
