"""Peers and trainers: the chain of calls through the stages, and stochastic wiring. Begin with `peer`."""
