"""Figures of the network: maps and the matrix of links."""
