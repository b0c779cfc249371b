"""Columns for runs and calibrations."""
