"""Columns for maps and the matrix of links."""
