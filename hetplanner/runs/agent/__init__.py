"""The agent: one process per user that owns runs, its clients, and what it may do. Begin with `service`."""
