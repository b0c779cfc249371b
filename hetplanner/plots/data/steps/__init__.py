"""Columns for one step."""
