"""Columns for swarms."""
