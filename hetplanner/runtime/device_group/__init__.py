"""Devices of one host that serve a replica together: their exchanges, and which part of a weight each one holds."""
