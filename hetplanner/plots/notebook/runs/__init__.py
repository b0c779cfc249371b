"""Notebook plots of runs, calibrations and swarms."""
