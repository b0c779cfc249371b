"""The plan of mode elastic: which peers a swarm starts with, and its rules."""
