"""A peer that is a group of devices: one process each, which all make the same calls. Begin with `leader`."""
