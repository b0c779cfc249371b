"""Heartbeats of a run's processes in shared memory, and who has fallen silent. No torch."""
