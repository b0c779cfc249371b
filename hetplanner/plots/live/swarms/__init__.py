"""Figures of a swarm: life, wiring, peers by stage."""
