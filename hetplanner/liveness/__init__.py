"""Heartbeats of a run's processes in shared memory, and which ones have fallen silent. No torch."""
