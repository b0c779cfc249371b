"""Figures of one step: timelines, loads, memory."""
