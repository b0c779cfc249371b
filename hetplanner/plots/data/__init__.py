"""Columns for plots: pure functions from nouns to data, without a plotting library."""
