"""Columns for a search, its plans and the model."""
