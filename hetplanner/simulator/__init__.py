"""Discrete events: schedule, links, NICs and cores, giving a Trace."""
