"""Notebook plots of simulated steps."""
