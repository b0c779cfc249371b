"""A peer that is a group of devices: one process each, all doing the same. Begin with `leader`."""
