"""Elastic training (SWARM) without I/O: events in, actions out, time passed in."""
